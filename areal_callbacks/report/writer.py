"""The report at the end of a run, and now and then before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.report.build import build_report
from areal_callbacks.report.rewriting import ReportRewriter
from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run


class ReportWriter:
    """Builds ``<output_dir>/report.html`` when the run closes, from the metrics.jsonl beside it.

    Args:
        every: exports between two rewrites while the run goes on, in a process of their own; None: only at the end.

    It comes after the JsonlWriter among the synchronous writers: the file is then complete, and the report is there
    before the trackers close. A report that cannot be built is one message.
    """

    def __init__(self, every: int | None = None) -> None:
        self._every = every
        self._run: Run | None = None
        self._rewriter: ReportRewriter | None = None

    def open(self, run: Run) -> None:
        """Remember where the files are."""
        self._run = run
        if self._every is not None:
            self._rewriter = ReportRewriter(run.output_dir, run.report, run.name, self._every)

    def write(self, export: Export) -> None:
        """Perhaps begin to build the report; metrics.jsonl holds the export already."""
        if self._rewriter is not None:
            self._rewriter.count_export()

    def close(self) -> None:
        """Build the report; again does nothing."""
        if self._run is None:
            return
        run, self._run = self._run, None
        if self._rewriter is not None:
            self._rewriter.stop()
        try:
            build_report([run.output_dir / METRICS_FILE], run.report, names=[run.name] if run.name else None)
        except Exception as error:  # noqa: BLE001 - the numbers are safe; `areal-callbacks report` can be tried again
            report_once(f"report: {run.report}", f"{run.report} could not be built: {type(error).__name__}: {error}")
