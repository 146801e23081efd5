"""The report at the end of a run: there before the trackers close, and never in the way."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from support.report_runs import export

from areal_callbacks import MetricsSession
from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.report import ReportWriter
from areal_callbacks.session.outputs import make_publisher
from areal_callbacks.writers.base import MetricWriter


def test_it_is_a_metric_writer() -> None:
    assert isinstance(ReportWriter(), MetricWriter)


def train(folder: Path, **options: bool) -> None:
    model = torch.nn.Linear(2, 1)
    with MetricsSession(output_dir=folder, token_count_fn=len, name="tiny", **options) as session:
        session.attach(model)
        session.begin()
        model(torch.ones(3, 2)).sum().backward()
        session.export(1)


def test_a_session_leaves_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path)
    assert "<title>tiny · training report</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "report.html" in capsys.readouterr().out


def test_a_session_without_one(tmp_path: Path) -> None:
    train(tmp_path, report=False)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_it_is_there_when_the_trackers_of_the_host_close(tmp_path: Path) -> None:
    class Guest:
        seen: list[bool] = []  # noqa: RUF012 - of this one test

        def open(self, run: Run) -> None: ...

        def write(self, export: Export) -> None: ...

        def close(self) -> None:
            self.seen.append((tmp_path / "report.html").is_file())

    publisher = make_publisher(Run(tmp_path), MetricsConfig(), [Guest()])
    publisher.publish(export(1, {"a": 1.0}))
    publisher.close()
    assert Guest.seen == [True]


def test_a_report_that_cannot_be_built_is_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publisher = make_publisher(Run(tmp_path), MetricsConfig())
    publisher.publish(export(1, {"a": 1.0}))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    with caplog.at_level(logging.WARNING, logger="areal_callbacks"):
        publisher.close()
        publisher.close()
    assert [record.message for record in caplog.records if "report.html" in record.message] == [
        message for record in caplog.records if "line 3: not a valid record" in (message := record.message)
    ]
    assert len(caplog.records) == 1
    assert not (tmp_path / "report.html").exists()


def test_nothing_was_exported(tmp_path: Path) -> None:
    make_publisher(Run(tmp_path), MetricsConfig()).close()
    ReportWriter().close()
    assert list(tmp_path.iterdir()) == []
