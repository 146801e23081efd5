"""A file to which whole lines are appended, whatever happens to its disk and folder meanwhile."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path

from areal_callbacks.safety.reporting import report_once

LIMIT = 16 << 20
"""Bytes that wait to be written; above that the oldest blocks are given up."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for its reader


class LineFile:
    """Appends blocks of whole lines; none of it raises an ``OSError``.

    A block is with the operating system when :meth:`append` returns, or not at all: what was written of it is taken
    back. Blocks that cannot be written (the disk is full, the folder cannot be made, the path is a pipe) wait, bounded
    by :data:`LIMIT`, and are written before the next one, or at the end. A file that was deleted, moved or rotated away
    is made anew. The first trouble is one message, and so is what was lost in the end.

    Args:
        path: of the file; missing folders are made.
        head: gives the block with which this writer's part of a file begins, each time that one is opened.
        prepare: called with the path before it is opened.
    """

    def __init__(self, path: Path, head: Callable[[], bytes], prepare: Callable[[Path], None]) -> None:
        self._path, self._head, self._prepare = path, head, prepare
        self._descriptor: int | None = None
        self._waiting: deque[bytes] = deque()
        self._lost = 0

    def append(self, block: bytes) -> None:
        """Write what waits, and then this block."""
        if block:
            self._waiting.append(block)
        while sum(map(len, self._waiting)) > LIMIT:
            self._waiting.popleft()
            self._lost += 1
        try:
            self._write()
        except OSError as error:
            report_once(
                f"lines:{self._path}",
                f"{self._path} cannot be written: {error}; up to {LIMIT >> 20} MB of rows are kept until it can",
            )

    def close(self) -> None:
        """Write what waits, and close; again does nothing."""
        if self._waiting:
            self.append(b"")
        if lost := self._lost + len(self._waiting):
            report_once(f"lost:{self._path}", f"{lost} exports could not be written to {self._path}")
        self._waiting.clear()
        self._lost = 0
        self._release()

    def _write(self) -> None:
        descriptor = self._open()
        while self._waiting:
            _append(descriptor, self._waiting[0])
            self._waiting.popleft()

    def _open(self) -> int:
        """The file that has the path now."""
        if self._descriptor is not None and self._is_current(self._descriptor):
            return self._descriptor
        self._release()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._prepare(self._path)
        descriptor = _open_regular(self._path)
        try:
            _append(descriptor, self._head())
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except OSError:
            return False

    def _release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _open_regular(path: Path) -> int:
    descriptor = os.open(path, _FLAGS | _WITHOUT_WAITING, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is no regular file")


def _append(descriptor: int, block: bytes) -> None:
    """All of a block, in one write where the disk takes it, or nothing."""
    size, rest = os.fstat(descriptor).st_size, memoryview(block)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise
