"""A report inside of a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from areal_callbacks.core.file_names import REPORT_FILE
from areal_callbacks.report.build import build_report
from areal_callbacks.report.locate import find_metrics


@dataclass(frozen=True)
class Report:
    """A report file that a notebook shows inline.

    Attributes:
        path: of the file.
        height: of the frame in the notebook, in CSS pixels.
    """

    path: Path
    height: int = 900

    def _repr_html_(self) -> str:
        """The page in a frame of its own, whole, so that a saved notebook keeps it."""
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe title="Training report" style="{style}" srcdoc="{page}"></iframe>'


def show_report(
    *paths: str | Path,
    output: str | Path | None = None,
    names: Sequence[str] | None = None,
    every_training: bool = False,
) -> Report:
    """Build the report of one run, or of several to compare, as it stands now; a notebook shows the result inline.

    Args:
        *paths: of each run, its metrics.jsonl, the folder of that, or a host's output folder.
        output: the file to write; by default report.html beside metrics.jsonl, or here for several runs.
        names: as for :func:`build_report`.
        every_training: as for :func:`build_report`.

    Raises:
        ValueError: no run, a path without a metrics.jsonl, or a corrupt one.
        OSError: the file cannot be written.
    """
    if output is None:
        output = find_metrics(paths[0]).parent / REPORT_FILE if len(paths) == 1 else REPORT_FILE
    return Report(build_report(paths, output, names=names, every_training=every_training))
