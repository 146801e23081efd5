"""A writer of a user, which remembers its calls and fails or hangs where a test wants it to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from areal_callbacks.core.types import Export, Run


class Recorder:
    """Remembers what happened, and raises at the wanted call.

    Args:
        fail_at: ``open``, ``close`` or ``write <step>``.
        error: what it raises there.

    Attributes:
        calls: all calls in their order.
        exports: what it was given.
        threads: names of the threads that it was called on.
        closed: is set once it is closed.
        gate: every call waits until it is set.
    """

    def __init__(self, fail_at: str = "", error: type[BaseException] = RuntimeError) -> None:
        self.fail_at = fail_at
        self.error = error
        self.calls: list[str] = []
        self.exports: list[Export] = []
        self.threads: set[str] = set()
        self.closed = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, run: Run) -> None:
        self.act("open")

    def write(self, export: Export) -> None:
        self.exports.append(export)
        self.act(f"write {export.step}")

    def close(self) -> None:
        self.act("close")
        self.closed.set()

    def act(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        self.gate.wait()
        if call == self.fail_at:
            raise self.error(f"cannot {call}")


class Stuck(Recorder):
    """Hangs in its first call until the test sets its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()

    def wait_until_busy(self) -> None:
        wait_until(lambda: self.calls)


def wait_until(condition: Callable[[], Any], seconds: float = 10) -> None:
    """Return once the condition is true; TimeoutError if it does not become so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.001)
