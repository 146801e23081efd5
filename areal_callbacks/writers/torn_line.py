"""The last line of a file that a killed run left."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from areal_callbacks.writers.metrics_file import LONGEST_LINE, is_object

_BLOCK = 1 << 16


def end_last_line(path: Path) -> None:
    """Make the file end with a whole line: what came next would be glued to a torn one, and both lost.

    A last line that is a whole object gets its line end; anything else is cut off.
    """
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        start = _find_last_line(end, file)
        if start == end:
            return
        file.seek(start)
        if end - start <= LONGEST_LINE and is_object(file.read()):
            file.write(b"\n")
        else:
            file.truncate(start)


def _find_last_line(end: int, file: BinaryIO) -> int:
    """The position after the last line end, found from the back: a long run's file is large."""
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
