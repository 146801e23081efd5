"""From metrics.jsonl to report.html."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from areal_callbacks.report.history import read_history, read_trainings
from areal_callbacks.report.locate import find_metrics, name_runs
from areal_callbacks.report.page import render
from areal_callbacks.report.payload import make_payload


def build_report(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    names: Sequence[str] | None = None,
    every_training: bool = False,
) -> Path:
    """Write one self-contained HTML file about one run, or about several to compare.

    Args:
        paths: of each run, its metrics.jsonl, the folder of that, or a host's output folder.
        output: the file to write; an older one is replaced once the new one is complete.
        names: of the runs, in their order; by default those of their folders.
        every_training: of a folder that was used again, or by the trials of a search, all; by default the last.

    Returns:
        ``output``.

    Raises:
        ValueError: no run, a path without a metrics.jsonl, a corrupt one, or another number of names than of runs.
        OSError: ``output`` cannot be written.
    """
    if not paths:
        raise ValueError("paths: at least one run is needed, got none")
    if names is not None and len(names) != len(paths):
        raise ValueError(f"names: {len(names)} for {len(paths)} runs: {', '.join(map(repr, names))}")
    files = [find_metrics(path) for path in paths]
    named = zip(files, names or name_runs(files))
    if every_training:
        histories = [history for file, name in named for history in read_trainings(file, name)]
    else:
        histories = [read_history(file, name) for file, name in named]
    title = " · ".join(history.name for history in histories)
    return _replace(Path(output), render(make_payload(histories), f"{title} · training report"))


def name_unfinished(output: Path, process: int) -> Path:
    """The file beside ``output`` that a process writes before it takes its place."""
    return output.with_name(f".{output.name}.{process}")


def _replace(output: Path, text: str) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = name_unfinished(output, os.getpid())
    try:
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return output
