"""Hands every export to the writers without ever delaying or ending the training."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from areal_callbacks.safety.at_exit import Order, at_exit, cancel
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.writers.background import BackgroundWriters
from areal_callbacks.writers.guarded import WriterGroup

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run
    from areal_callbacks.writers.base import MetricWriter

_numbers = count()


class Publisher:
    """Writes at once to the synchronous writers, and to the others in the background.

    Writers are opened at the first export. One that raises is reported once by name, closed and switched off; the
    others go on. A writer that hangs delays those on the same thread but never the caller: once ``capacity`` exports
    wait there, further ones are dropped there. Nothing is published from a forked child of the process that published
    first. What still waits at interpreter exit is written, also after an interrupted ``close`` and for a publisher that
    nothing refers to any more; such a one is freed as soon as its last export is written.

    Args:
        writers: the writers driven in turn by one background thread.
        run: what the writers are told when they open.
        synchronous: the writers driven on the caller's thread, metrics.jsonl above all.
        trackers: writers that may wait for a server: each has a background thread of its own. They are closed last, so
            that they can upload the files that the others wrote.
        capacity: how many exports may wait for a background thread. W&B takes seconds to open: a quick loop has
            committed hundreds by then.
    """

    def __init__(
        self,
        writers: Iterable[MetricWriter],
        *,
        run: Run,
        synchronous: Iterable[MetricWriter] = (),
        trackers: Iterable[MetricWriter] = (),
        capacity: int = 1024,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._key = f"publisher {next(_numbers)}"
        self._outlets = _Outlets(
            WriterGroup(synchronous, run, self._key),
            [
                BackgroundWriters(WriterGroup(group, run, self._key), capacity, f"{self._key} {number}")
                for number, group in enumerate([list(writers), *([tracker] for tracker in trackers)])
            ],
        )
        self._closed = False

    def publish(self, export: Export) -> None:
        """Write ``export`` to the synchronous writers and queue it for the others; neither waits nor raises."""
        if self._closed:
            report_once(f"{self._key}: closed", f"export of step {export.step} came after the end: not written")
            return
        if self._outlets.process is None:
            self._outlets.process = os.getpid()
            at_exit(self._outlets, _Outlets.close, Order.CLOSE)
            # The garbage collector runs in the middle of training, so it must not wait.
            weakref.finalize(self, _Outlets.end, self._outlets).atexit = False
        if self._outlets.process != os.getpid():
            report_once(f"{self._key}: fork", f"export of step {export.step} came from a forked process: not written")
            return
        # The caller may change its dictionaries while the background thread still reads them.
        self._outlets.write(replace(export, metrics=dict(export.metrics), host=dict(export.host)))

    def close(self, timeout: float = 60.0) -> None:
        """Close all writers; waits at most ``timeout`` seconds for the background ones, then gives them up."""
        self._closed = True
        self._outlets.close(timeout)


class _Outlets:
    """All writers of a publisher. The background threads keep this object until the last export is written.

    Attributes:
        process: that of the first export, to which files, sockets and threads belong; None before.
    """

    def __init__(self, synchronous: WriterGroup, background: Sequence[BackgroundWriters]) -> None:
        self._synchronous = synchronous
        self._background = background
        self._closed = False
        self.process: int | None = None

    def write(self, export: Export) -> None:
        self._synchronous.write(export)
        for background in self._background:
            background.put(export, keep=self)

    def close(self, timeout: float = 60.0) -> None:
        """Close and wait, in the order that lets trackers upload what the others wrote."""
        if self._closed or self.process != os.getpid():
            return
        self._synchronous.close()
        deadline = time.monotonic() + timeout
        first, *trackers = self._background
        first.close(timeout)
        for tracker in trackers:
            tracker.end()
        for tracker in trackers:
            tracker.close(max(0.0, deadline - time.monotonic()))
        # Only now: after a KeyboardInterrupt the rest is left to the exit, or to another call.
        self._closed = True
        cancel(self)

    def end(self) -> None:
        """Close the synchronous writers and let the threads end by themselves."""
        if self.process == os.getpid():
            self._synchronous.close()
            for background in self._background:
                background.end()
