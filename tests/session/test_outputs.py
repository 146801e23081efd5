"""Which files and trackers a run gets, and what they hold of the host's row."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.readback import jsonl_rows

from areal_callbacks import MetricsConfig, MetricsSession
from areal_callbacks.core.types import Export, Run
from areal_callbacks.session.outputs import make_publisher
from areal_callbacks.writers.base import MetricWriter


class Guest:
    """A user's writer that notes when it is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files_at_the_end: list[str] = []

    def open(self, run: Run) -> None:
        pass

    def write(self, export: Export) -> None:
        pass

    def close(self) -> None:
        self.files_at_the_end = sorted(path.name for path in self.folder.iterdir())


def test_files_a_summary_and_a_report_that_the_guests_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guest = Guest(tmp_path)
    assert isinstance(guest, MetricWriter)
    publisher = make_publisher(Run(tmp_path), MetricsConfig(), [guest])
    publisher.publish(Export(1, {"train_perf/tokens": 1234567.0}))
    publisher.close()
    assert jsonl_rows(tmp_path) == {1: {"train_perf/tokens": 1234567.0}}
    assert guest.files_at_the_end == ["metrics.jsonl", "report.html"]
    out = capsys.readouterr().out
    assert out.count("1,234,567") == 1
    assert "metrics.jsonl" in out


def test_what_is_switched_off_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publisher = make_publisher(Run(tmp_path), MetricsConfig(report=False), print_every_export=True)
    for step in (1, 2):
        publisher.publish(Export(step, {"train_perf/tokens": 5.0}))
    publisher.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert capsys.readouterr().out.count("train_perf/tokens") == 2


def test_the_trackers_of_the_stats_logger_section_are_opened(tmp_path: Path) -> None:
    section: dict[str, Any] = {"tensorboard": {"path": str(tmp_path / "tb")}, "wandb": {"mode": "disabled"}}
    publisher = make_publisher(Run(tmp_path / "run"), MetricsConfig(stats_logger=section, report=False))
    publisher.publish(Export(1, {"a": 1.0}))
    publisher.close()
    assert [path.name.split(".")[0] for path in (tmp_path / "tb").iterdir()] == ["events"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


class NotReady:
    def __float__(self) -> float:
        raise RuntimeError("call setup() first")


def test_the_hosts_numbers_of_any_library_reach_the_files_and_the_rest_is_left_out(tmp_path: Path) -> None:
    host: dict[str, Any] = {
        "loss": np.float32(0.5),
        "samples": np.int64(3),
        "norm": torch.tensor([2.5], dtype=torch.bfloat16, requires_grad=True),
        "epoch": 0.25,
        "huge": 10**400,
        "ratio": Fraction(1, 4),
        "word": "warm-up",
        "vector": np.ones(2),
        "complex": np.complex64(1),
        "meta": torch.ones((), device="meta"),
        "odd": NotReady(),
    }
    with MetricsSession(output_dir=tmp_path, report=False) as session:
        session.tracker.scalar(ours=1.0)
        kept = session.export(1, host=host).host
    assert kept == {"loss": 0.5, "samples": 3.0, "norm": 2.5, "epoch": 0.25, "ratio": 0.25}
    assert jsonl_rows(tmp_path) == {1: {**kept, "ours": 1.0}}


def test_a_run_that_is_never_closed_is_complete_after_the_exit(tmp_path: Path) -> None:
    code = """
import sys
from areal_callbacks import MetricsSession
session = MetricsSession(output_dir=sys.argv[1])
session.tracker.scalar(a=1.0)
session.export(1)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert jsonl_rows(tmp_path) == {1: {"a": 1.0}}
    assert (tmp_path / "report.html").exists()
    assert "AReaL metrics, step 1" in done.stdout
