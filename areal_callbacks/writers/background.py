"""Writers on a thread of their own, behind a bounded queue."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export
    from areal_callbacks.writers.guarded import WriterGroup


class BackgroundWriters:
    """Drives a group of writers from one daemon thread, so that a slow one never delays the caller.

    Args:
        writers: driven in turn.
        capacity: how many exports may wait; further ones are dropped, with one message.
        key: of its messages, which are reported once for each group.
    """

    def __init__(self, writers: WriterGroup, capacity: int, key: str) -> None:
        self._writers = writers
        self._capacity = capacity
        self._key = key
        # A SimpleQueue has no lock that put() could wait for, and its bound is ours: the end mark always fits.
        self._queue: SimpleQueue[Export | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._ended = False

    def put(self, export: Export, keep: object) -> None:
        """Queue an export, or drop it where the queue is full; neither waits nor raises.

        Args:
            export: what to write.
            keep: is not freed before the thread ends.
        """
        if not self._writers or not self._start(keep):
            return
        if self._queue.qsize() < self._capacity:
            self._queue.put(export)
            return
        self._dropped += 1
        report_once(
            f"{self._key}: full",
            f"{self._writers.busy} is too slow: {self._capacity} exports wait, so that of step {export.step} and later"
            " ones may be missing in the trackers; metrics.jsonl is not affected",
        )

    def end(self) -> None:
        """Let the thread end once it has written what waits; does not wait for it."""
        if not self._ended:
            self._ended = True
            self._queue.put(None)

    def close(self, timeout: float) -> None:
        """End the thread, wait for it for ``timeout`` seconds, and report what was lost."""
        if self._thread is None:
            return
        self.end()
        self._thread.join(timeout)
        losses = [f"{self._dropped} exports were dropped"] if self._dropped else []
        if self._thread.is_alive():
            waiting = max(0, self._queue.qsize() - 1)
            losses.append(f"{self._writers.busy} did not finish within {timeout:g} s, {waiting} exports still waited")
        if losses:
            problem = f"incomplete, unlike metrics.jsonl: {'; '.join(losses)}"
            report_once(f"{self._key}: losses", f"{self._writers}: {problem}")

    def _start(self, keep: object) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._work, args=(keep,), name="areal_callbacks writers", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                report_once(f"{self._key}: thread", f"no thread for the background writers: {error}")
                return False
            self._thread = thread
        return True

    def _work(self, keep: object) -> None:
        while (export := self._queue.get()) is not None:
            self._writers.write(export)
        self._writers.close()
