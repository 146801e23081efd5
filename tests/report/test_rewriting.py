"""The report while the run goes on: built by another process, never in the way of training or of the last report."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.report_runs import export, typical_metrics, write_run

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.types import Run
from areal_callbacks.report import build_report
from areal_callbacks.session.outputs import make_publisher

EVERY_SECOND = MetricsConfig.make({"report": {"every": 2}})


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_is_there_before_the_end_and_whole_at_the_end(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    publisher = make_publisher(Run(tmp_path, name="tiny"), EVERY_SECOND)
    publisher.publish(export(1, typical_metrics(1, 9)))
    time.sleep(0.3)
    assert not report.exists(), "not after the first"
    publisher.publish(export(2, typical_metrics(2, 9)))
    wait_for(report.exists)
    reference = build_report([tmp_path], tmp_path / "reference.html", names=["tiny"])
    assert report.read_text() == reference.read_text()
    for step in range(3, 10):
        publisher.publish(export(step, typical_metrics(step, 9)))
    publisher.close()
    build_report([tmp_path], reference, names=["tiny"])
    time.sleep(1.0)  # what a build that was going on might still do
    assert report.read_text() == reference.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "reference.html", "report.html"]


def test_exports_do_not_wait_for_it(tmp_path: Path) -> None:
    write_run(tmp_path, (export(step, typical_metrics(step, 4000)) for step in range(1, 4001)))
    begin = time.perf_counter()
    build_report([tmp_path], tmp_path / "reference.html")
    building = time.perf_counter() - begin
    publisher = make_publisher(Run(tmp_path, resumes=True), EVERY_SECOND)
    publisher.publish(export(4001, {"a": 1.0}))
    begin = time.perf_counter()
    publisher.publish(export(4002, {"a": 1.0}))
    assert time.perf_counter() - begin < building / 5
    publisher.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "reference.html", "report.html"]


def test_one_that_cannot_be_built_is_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publisher = make_publisher(Run(tmp_path), EVERY_SECOND)
    publisher.publish(export(1, {"a": 1.0}))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")

    def messages() -> list[str]:
        return [record.message for record in caplog.records if "could not be rewritten" in record.message]

    with caplog.at_level(logging.WARNING, logger="areal_callbacks"):
        for step in range(2, 8, 2):
            publisher.publish(export(step, {"a": 1.0}))
            publisher.publish(export(step + 1, {"a": 1.0}))
            wait_for(lambda: len(messages()) == 1)
        publisher.close()
    assert "line 3: not a valid record" in messages()[0]
    assert len(messages()) == 1


def test_the_building_process_needs_no_torch() -> None:
    code = "import sys, areal_callbacks.report.build; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
