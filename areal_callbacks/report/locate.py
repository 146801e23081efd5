"""Finds the metrics.jsonl of a run, and a name for the run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from areal_callbacks.core.file_names import METRICS_FILE, RUN_FOLDER
from areal_callbacks.safety.text import make_printable

_MOST_CHOICES = 20


class NoMetricsError(ValueError):
    """There is no metrics.jsonl where one was looked for; a run that starts there will write it."""


def find_metrics(path: str | Path) -> Path:
    """The file that ``path`` means: itself, the one in it, or the one in its ``areal_metrics`` folder.

    Raises:
        NoMetricsError: there is none.
        ValueError: several runs in subfolders; names the first twenty.
    """
    path = Path(path)
    shown = make_printable(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise NoMetricsError(f"{shown}: no such file or folder")
    for candidate in (path / METRICS_FILE, path / RUN_FOLDER / METRICS_FILE):
        if candidate.is_file():
            return candidate
    found = itertools.chain(path.glob(f"*/{METRICS_FILE}"), path.glob(f"{RUN_FOLDER}/*/{METRICS_FILE}"))
    runs = sorted(itertools.islice(found, _MOST_CHOICES))
    if len(runs) == 1:
        return runs[0]
    if runs:
        choices = ", ".join(make_printable(run.parent) for run in runs)
        raise ValueError(f"{shown}: several runs, choose among {choices}")
    raise NoMetricsError(f"{shown}: no {METRICS_FILE} in it or in its {RUN_FOLDER} folder")


def name_runs(files: Sequence[Path]) -> list[str]:
    """A short name for every run: that of its folder, with as many parents as make all names different."""
    parts = [_list_folders(file.resolve()) for file in files]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{own[-1]} ({number})" for number, own in enumerate(parts, start=1)]


def _list_folders(file: Path) -> list[str]:
    """Folder names from the outermost, without ``areal_metrics`` and the default file name, which every run has."""
    parts = [part for part in file.parent.parts if part not in (RUN_FOLDER, file.anchor)]
    return ([*parts] if file.name == METRICS_FILE else [*parts, file.stem]) or [file.stem]
