"""metrics.jsonl while a run writes it: what was added since the last look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from areal_callbacks.safety.text import make_printable
from areal_callbacks.writers.metrics_file import LONGEST_LINE, PackedRecord, open_regular, read_line

_HEAD = 256
"""Bytes that tell a file from another: the first line holds the time of its start."""


class FollowedFile:
    """Reads the whole lines of a file once each. Looking instead of being told works on network file systems too.

    Args:
        path: the file; it may be replaced, cut, removed and written anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head = b""
        self._position = 0
        self._lines = 0

    def is_another(self) -> bool:
        """Whether the file is not the one that was read, or a part of that is gone; a missing one is not another."""
        try:
            with open_regular(self.path) as file:
                return self._position > os.fstat(file.fileno()).st_size or file.read(len(self._head)) != self._head
        except FileNotFoundError:
            return False

    def begin_again(self) -> None:
        """Read from the beginning."""
        self._head, self._position, self._lines = b"", 0, 0

    def read_new(self) -> Iterator[PackedRecord]:
        """The records of the lines that were finished since the last call; none while there is no file.

        Raises:
            ValueError: a line is corrupt or too long; names the file and the line number.
        """
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return
        with file:
            file.seek(self._position)
            yield from self._read_lines(file)

    def _read_lines(self, file: BinaryIO) -> Iterator[PackedRecord]:
        while (line := file.readline(LONGEST_LINE + 1)).endswith(b"\n") or len(line) > LONGEST_LINE:
            record = read_line(f"{make_printable(self.path)}, line {self._lines + 1}", line)
            if self._position < _HEAD:
                self._head = (self._head + line)[:_HEAD]
            self._position += len(line)
            self._lines += 1
            if record is not None:
                yield record
