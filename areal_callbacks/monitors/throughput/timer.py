"""Sums the duration of spans on the device without ever waiting for it between exports."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch


class Timer(Protocol):
    """A stopwatch for repeated spans. ``start`` and ``stop`` are idempotent."""

    @property
    def running(self) -> bool:
        """Inside a span that has not ended by a mark."""

    def start(self) -> None:
        """Begin a span; nothing happens inside one."""

    def stop(self) -> None:
        """End the span; nothing happens outside one."""

    def may_stop(self) -> None:
        """The span has ended here if ``start`` comes next, and goes on if ``stop`` comes next."""

    def cancel(self) -> None:
        """Forget the open span, if any."""

    def take(self) -> float:
        """Seconds in all finished spans since the last call; may wait for the device. An open span goes on."""


def make_timer(device: torch.device) -> Timer:
    """Device events where the accelerator has timed ones, which do not wait for it; else the wall clock."""
    if device.type == "cpu":
        return WallTimer()
    if device.type in ("cuda", "xpu") or _has_timed_events(device):
        return EventTimer(device)
    return WallTimer(synchronise=lambda: torch.accelerator.synchronize(device))


def _has_timed_events(device: torch.device) -> bool:
    try:
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        stream = torch.accelerator.current_stream(device)
        begin.record(stream)
        end.record(stream)
        end.synchronize()
        return begin.elapsed_time(end) >= 0
    except Exception:  # noqa: BLE001 - what an accelerator lacks it tells by errors of its own
        return False


class WallTimer:
    """Wall-clock spans, at both ends of which an accelerator is awaited: its work belongs to the span that gave it.

    Args:
        clock: seconds.
        synchronise: waits for the accelerator; None for work that is done when its call returns.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, synchronise: Callable[[], None] | None = None
    ) -> None:
        self._clock = clock
        self._synchronise = synchronise
        self._started: float | None = None
        self._marked: float | None = None
        self._seconds = 0.0

    @property
    def running(self) -> bool:
        return self._started is not None and self._marked is None

    def start(self) -> None:
        self._end_at_mark()
        if self._started is None:
            self._started = self._now()

    def stop(self) -> None:
        if self._started is not None:
            self._seconds += self._now() - self._started
            self._started = self._marked = None

    def may_stop(self) -> None:
        if self._started is not None:
            self._marked = self._now()

    def cancel(self) -> None:
        self._started = self._marked = None

    def take(self) -> float:
        self._end_at_mark()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _end_at_mark(self) -> None:
        if self._started is not None and self._marked is not None:
            self._seconds += self._marked - self._started
            self._started = self._marked = None

    def _now(self) -> float:
        """The time at which the accelerator has done what it was given."""
        if self._synchronise is not None:
            self._synchronise()
        return self._clock()


class EventTimer:
    """Spans between pairs of events on the stream that is current when they begin.

    Finished pairs are folded into the sum with ``query()``, so that the number of events stays small at any interval.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin: torch.Event | None = None
        self._mark: torch.Event | None = None
        self._stream: torch.Stream | None = None
        self._pending: deque[tuple[torch.Event, torch.Event]] = deque()
        self._seconds = 0.0

    @property
    def running(self) -> bool:
        return self._begin is not None and self._mark is None

    def start(self) -> None:
        self._end_at_mark()
        if self._begin is None:
            self._fold_finished()
            self._stream = torch.accelerator.current_stream(self._device)
            self._begin = self._record()

    def stop(self) -> None:
        if self._begin is not None:
            self._pending.append((self._begin, self._record()))
            self._begin = self._mark = None

    def may_stop(self) -> None:
        if self._begin is not None:
            self._mark = self._record()

    def cancel(self) -> None:
        self._begin = self._mark = None

    def _end_at_mark(self) -> None:
        if self._begin is not None and self._mark is not None:
            self._pending.append((self._begin, self._mark))
            self._begin = self._mark = None

    def take(self) -> float:
        self._end_at_mark()
        if self._pending:
            self._pending[-1][1].synchronize()
        while self._pending:
            self._fold()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _record(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(self._stream)
        return event

    def _fold_finished(self) -> None:
        while self._pending and self._pending[0][1].query():
            self._fold()

    def _fold(self) -> None:
        begin, end = self._pending.popleft()
        self._seconds += begin.elapsed_time(end) / 1000.0
