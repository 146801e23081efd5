"""The wall-clock time of a block."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable


class Timing(contextlib.ContextDecorator):
    """Tells how long its block took, also if that raises; usable as a decorator. A class is half as slow to enter and
    leave as a generator.

    Args:
        record: is given the name and the seconds.
        name: of the block.
    """

    __slots__ = ("_name", "_record", "_start")

    def __init__(self, record: Callable[[str, float], None], name: str) -> None:
        self._record, self._name = record, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._record(self._name, time.perf_counter() - self._start)

    def _recreate_cm(self) -> Timing:
        """One for each call of a decorated function, which may call itself or run in several threads."""
        return Timing(self._record, self._name)
