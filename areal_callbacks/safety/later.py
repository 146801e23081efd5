"""What must not run where an object of the host is freed: that may be in the middle of a garbage collection, where
tensors that are being freed must not be used, and a collection inside of it ends the process.
"""

from __future__ import annotations

from collections.abc import Callable

from areal_callbacks.safety.at_exit import Order, at_exit
from areal_callbacks.safety.door import attempt


class _Waiting:
    def __init__(self) -> None:
        self._ends: list[Callable[[], object]] = []

    def add(self, end: Callable[[], object]) -> None:
        self._ends.append(end)
        at_exit(self, _Waiting.run, Order.FLUSH)

    def run(self) -> None:
        while self._ends:
            attempt("later", "a run whose host is gone could not be written to its end", self._ends.pop(0))


_waiting = _Waiting()


def end_later(end: Callable[[], object]) -> None:
    """Call ``end`` when the next measurement begins, or at the exit of the interpreter."""
    _waiting.add(end)


def end_now() -> None:
    """Call everything that waits."""
    _waiting.run()
