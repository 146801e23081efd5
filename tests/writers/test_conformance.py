"""Every writer lives as the interface says; a new one that is no tracker is named here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.conformance import check_writer

from areal_callbacks.report.writer import ReportWriter
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.console import ConsoleWriter
from areal_callbacks.writers.jsonl import JsonlWriter

WRITERS: dict[str, Callable[[], MetricWriter]] = {
    "jsonl": JsonlWriter,
    "console": ConsoleWriter,
    "report": ReportWriter,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_lives_as_the_interface_says(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_writer(WRITERS[name], tmp_path, caplog)
