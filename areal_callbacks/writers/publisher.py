"""Hands every export to the writers without ever holding up or breaking training."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import process as _process  # noqa: F401 - its exit handler must be older than ours,
from concurrent.futures import thread as _thread  # noqa: F401 - and so must this one's
from dataclasses import replace
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from areal_callbacks.report.writer import ReportWriter
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.writers.console import ConsoleWriter
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.owned import owned_writers

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.core.types import Export, Run
    from areal_callbacks.writers.base import MetricWriter

_EXTRAS = ("wandb", "swanlab", "trackio", "tensorboard")
_numbers = count()
_at_exit: dict[str, Callable[[], None]] = {}


class Publisher:
    """Writes at once to the synchronous writers, and to the others in the background.

    Writers are opened at the first export. One that raises is reported once by name, closed and switched off; the
    others go on. A writer that hangs holds up those on the same thread but never the caller: once ``capacity`` exports
    wait there, further ones are dropped there. Nothing is published from a forked child of the process that published
    first. What still waits at interpreter exit is flushed, also after an interrupted ``close``; a publisher that is
    forgotten before ends in the background.

    Args:
        writers: the writers driven in turn by one background thread.
        run: what the writers learn when they open.
        synchronous: the writers driven on the caller's thread, metrics.jsonl above all.
        trackers: writers that may hang on a server: each has a background thread of its own. They are closed last, so
            that they can hand over the files that the others wrote.
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
        self._synchronous = _Writers(synchronous, run, self._key)
        self._background = [
            _Background(_Writers(group, run, self._key), capacity, f"{self._key} {number}")
            for number, group in enumerate([list(writers), *([tracker] for tracker in trackers)])
        ]
        self._process: int | None = None
        self._closed = False

    def publish(self, export: Export) -> None:
        """Write ``export`` to the synchronous writers and queue it for the others; neither waits nor raises."""
        if self._closed:
            report_once(f"{self._key}: closed", f"export of step {export.step} came after the end: not written")
            return
        if not self._owns_writers():
            report_once(f"{self._key}: fork", f"export of step {export.step} came from a forked process: not written")
            return
        # The caller may go on to change its dictionaries, under the background thread's feet.
        export = replace(export, metrics=dict(export.metrics), host=dict(export.host))
        self._synchronous.write(export)
        for background in self._background:
            background.put(export)

    def close(self, timeout: float = 60.0) -> None:
        """Close all writers; waits at most ``timeout`` seconds for the background ones, then gives them up."""
        self._closed = True
        if self._key in _at_exit:
            _close(self._synchronous, self._background, self._process, timeout)
            # Only now: after a KeyboardInterrupt the rest is left to the exit.
            _at_exit.pop(self._key, None)

    def _owns_writers(self) -> bool:
        """Files, sockets and the thread belong to the process of the first export."""
        if self._process is None:
            self._process = os.getpid()
            parts = (self._synchronous, self._background, self._process)
            _at_exit[self._key] = partial(_close, *parts)
            # The garbage collector runs in the middle of training, so it must not wait.
            weakref.finalize(self, _forget, *parts).atexit = False
        return self._process == os.getpid()


def default_publisher(run: Run, config: MetricsConfig | None = None, guests: Iterable[MetricWriter] = ()) -> Publisher:
    """What every run gets: metrics.jsonl, report and console summary at the end, and the trackers that are wanted.

    Args:
        run: what the writers learn when they open.
        config: its ``stats_logger`` names the trackers that are ours to open, ``report`` whether there is a report.
        guests: writers into the trackers of the host, called on the caller's thread.
    """
    trackers = owned_writers(config.stats_logger, config.moe_balance) if config is not None else []
    # The report comes before the trackers, which take it with them when they close.
    report = [ReportWriter()] if config is not None and config.report else []
    return Publisher([ConsoleWriter()], run=run, synchronous=[JsonlWriter(), *report, *guests], trackers=trackers)


def _close(
    synchronous: _Writers, backgrounds: Sequence[_Background], process: int | None, timeout: float = 60.0
) -> None:
    if process != os.getpid():
        return
    synchronous.close()
    deadline = time.monotonic() + timeout
    first, *trackers = backgrounds
    first.close(timeout)
    for tracker in trackers:
        tracker.finish()
    for tracker in trackers:
        tracker.close(max(0.0, deadline - time.monotonic()))


def _forget(synchronous: _Writers, backgrounds: Sequence[_Background], process: int) -> None:
    if process == os.getpid():
        synchronous.close()
        for background in backgrounds:
            background.finish()


def _close_all() -> None:
    while _at_exit:
        _at_exit.popitem()[1]()


# Trackers end their runs in exit handlers of their own, and cannot open any more once threads are shut down. What
# threading registers comes before both.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


class _GuardedWriter:
    """A writer that never raises: its first failure is reported, and it is switched off."""

    def __init__(self, writer: MetricWriter, run: Run, key: str) -> None:
        self.name = type(writer).__name__
        self._writer = writer
        self._run = run
        self._key = f"{key}: {self.name} {id(writer)}"
        self._state: Literal["new", "open", "off"] = "new"

    def write(self, export: Export) -> None:
        if self._state == "new":
            self._state = "open"
            if not self._attempt("open", self._writer.open, self._run):
                self.close()
        if self._state == "open" and not self._attempt("write", self._writer.write, export):
            self.close()

    def close(self) -> None:
        if self._state == "open":
            self._attempt("close", self._writer.close)
        self._state = "off"

    def _attempt(self, action: str, call: Callable[..., None], *args: object) -> bool:
        try:
            call(*args)
        except (Exception, SystemExit) as error:  # noqa: BLE001 a tracker must not end the training
            problem = f"{type(error).__name__}: {error}{_remedy(error)}"
            report_once(self._key, f"{self.name} failed to {action} and is switched off: {problem}")
            return False
        return True


def _remedy(error: BaseException) -> str:
    """The extra that brings a tracker is called like its package."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"; pip install 'areal-callbacks[{missing}]'" if missing in _EXTRAS else ""


class _Writers:
    """Several guarded writers, driven in turn; ``busy`` names the one at work."""

    def __init__(self, writers: Iterable[MetricWriter], run: Run, key: str) -> None:
        self._writers = [_GuardedWriter(writer, run, key) for writer in writers]
        self.busy = "the background thread"

    def __len__(self) -> int:
        return len(self._writers)

    def __str__(self) -> str:
        return ", ".join(writer.name for writer in self._writers)

    def write(self, export: Export) -> None:
        for writer in self._writers:
            self.busy = writer.name
            writer.write(export)

    def close(self) -> None:
        for writer in self._writers:
            self.busy = writer.name
            writer.close()


class _Background:
    """One daemon thread behind a bounded queue. It holds no reference to the publisher, which may be collected."""

    def __init__(self, writers: _Writers, capacity: int, key: str) -> None:
        self._writers = writers
        self._capacity = capacity
        self._key = key
        # A SimpleQueue has no lock that put() could wait for, and its bound is ours: the end mark always fits.
        self._queue: SimpleQueue[Export | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._finished = False

    def put(self, export: Export) -> None:
        if not self._writers or not self._started():
            return
        if self._queue.qsize() < self._capacity:
            self._queue.put(export)
            return
        self._dropped += 1
        report_once(
            f"{self._key}: full",
            f"{self._writers.busy} is too slow: {self._capacity} exports wait, so that of step {export.step} and later"
            " ones may miss in the trackers; metrics.jsonl is not affected",
        )

    def finish(self) -> None:
        """Let the thread end once it has written what waits."""
        if not self._finished:
            self._finished = True
            self._queue.put(None)

    def close(self, timeout: float) -> None:
        if self._thread is None:
            return
        self.finish()
        self._thread.join(timeout)
        losses = [f"{self._dropped} exports were dropped"] if self._dropped else []
        if self._thread.is_alive():
            waiting = max(0, self._queue.qsize() - 1)
            losses.append(f"{self._writers.busy} did not finish within {timeout:g} s, {waiting} exports still waited")
        if losses:
            problem = f"incomplete, unlike metrics.jsonl: {'; '.join(losses)}"
            report_once(f"{self._key}: losses", f"{self._writers}: {problem}")

    def _started(self) -> bool:
        if self._thread is None:
            started = threading.Thread(target=self._run, name="areal_callbacks writers", daemon=True)
            try:
                started.start()
            except RuntimeError as error:
                report_once(f"{self._key}: thread", f"no thread for the background writers: {error}")
                return False
            self._thread = started
        return True

    def _run(self) -> None:
        while (export := self._queue.get()) is not None:
            self._writers.write(export)
        self._writers.close()
