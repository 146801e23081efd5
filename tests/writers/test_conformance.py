"""Every writer lives as the interface says; a new one is named here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.conformance import check_writer

from areal_callbacks.config import SwanlabConfig, WandbConfig
from areal_callbacks.report.writer import ReportWriter
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.console import ConsoleWriter
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.swanlab import SwanlabWriter
from areal_callbacks.writers.tensorboard import TensorBoardWriter
from areal_callbacks.writers.trackio import TrackioWriter
from areal_callbacks.writers.wandb import WandbWriter

WRITERS: dict[str, Callable[[], MetricWriter]] = {
    "jsonl": JsonlWriter,
    "console": ConsoleWriter,
    "report": ReportWriter,
    "tensorboard": TensorBoardWriter,
    "wandb": lambda: WandbWriter(WandbConfig(mode="offline")),
    "swanlab": lambda: SwanlabWriter(SwanlabConfig(mode="offline")),
    "trackio": TrackioWriter,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_lives_as_the_interface_says(
    name: str, offline_trackers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_writer(WRITERS[name], offline_trackers, caplog)
