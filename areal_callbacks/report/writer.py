"""The report at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.report.build import build_report
from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run


class ReportWriter:
    """Builds ``<output_dir>/report.html`` when the run closes, from the metrics.jsonl beside it.

    It comes after the JsonlWriter among the synchronous writers: the file is then complete, and the report is there
    before the trackers close. A report that cannot be built is one message.
    """

    def __init__(self) -> None:
        self._run: Run | None = None

    def open(self, run: Run) -> None:
        """Remember where the files are."""
        self._run = run

    def write(self, export: Export) -> None:
        """Nothing: metrics.jsonl holds it."""

    def close(self) -> None:
        """Build the report; again does nothing."""
        if self._run is None:
            return
        run, self._run = self._run, None
        try:
            build_report([run.output_dir / METRICS_FILE], run.report, names=[run.name] if run.name else None)
        except Exception as error:  # noqa: BLE001 - the numbers are safe; `areal-callbacks report` can be tried again
            report_once(f"report: {run.report}", f"{run.report} could not be built: {type(error).__name__}: {error}")
