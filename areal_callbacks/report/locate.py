"""Which metrics.jsonl a path means, and what to call its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from areal_callbacks.writers.jsonl import FILE_NAME

_FOLDER = "areal_metrics"


def find_metrics(path: str | Path) -> Path:
    """The file that ``path`` means: itself, the one in it, or the one in its ``areal_metrics`` folder.

    Raises:
        ValueError: there is none, or several runs in subfolders; names them.
    """
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"{path}: no such file or folder")
    for candidate in (path / FILE_NAME, path / _FOLDER / FILE_NAME):
        if candidate.is_file():
            return candidate
    runs = sorted([*path.glob(f"*/{FILE_NAME}"), *path.glob(f"{_FOLDER}/*/{FILE_NAME}")])
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise ValueError(f"{path}: several runs, choose among {', '.join(str(run.parent) for run in runs)}")
    raise ValueError(f"{path}: no {FILE_NAME} in it or in its {_FOLDER} folder")


def run_names(files: Sequence[Path]) -> list[str]:
    """A short name for every run: its folder's, with as many parents as it takes to tell the runs apart."""
    parts = [_telling_parts(file.resolve()) for file in files]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{own[-1]} ({number})" for number, own in enumerate(parts, start=1)]


def _telling_parts(file: Path) -> list[str]:
    """Folder names from the outermost; ``areal_metrics`` and the default file name say nothing about a run."""
    parts = [part for part in file.parent.parts if part not in (_FOLDER, file.anchor)]
    return ([*parts] if file.name == FILE_NAME else [*parts, file.stem]) or [file.stem]
