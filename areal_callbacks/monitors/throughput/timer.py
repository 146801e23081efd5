"""Sums the duration of spans on the device without ever waiting for it between exports."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

_Moment = TypeVar("_Moment")


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

    def restart(self) -> None:
        """Begin a span; an open one is forgotten."""

    def cancel(self) -> None:
        """Forget the open span, if any."""

    def take(self) -> float:
        """Seconds in all finished spans since the last call; may wait for the device. An open span goes on."""

    def take_gaps(self) -> float | None:
        """Seconds between spans since the last call, as far as :meth:`take` knew them; None if there was no gap."""

    def leave_gap(self) -> bool:
        """The time since the last span is a gap, what comes now is none; False inside a span and before the first."""

    def enter_gap(self) -> None:
        """A gap begins here, unless a span runs."""

    def forget_gap(self) -> None:
        """The time since the last span is no gap."""


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


class _Spans(Generic[_Moment]):
    """The order of spans and of the gaps between them, whatever a moment is."""

    _now: Callable[[], _Moment]
    """Returns this moment. Never a bound method that the object keeps: it would be freed by the collector only."""

    def __init__(self) -> None:
        self._began: _Moment | None = None
        self._mark: _Moment | None = None
        self._left: _Moment | None = None  # where the gap began, or the part of it that is not added yet
        self._parts: list[tuple[_Moment, _Moment]] = []  # of a gap that is none if the span goes on
        self._seconds = 0.0
        self._gaps: float | None = None

    def _add(self, begin: _Moment, end: _Moment, *, is_gap: bool) -> None:
        """What lies between two moments is a span, or a gap."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        return self._began is not None and self._mark is None

    def start(self) -> None:
        if self._mark is not None:
            self._end_at_mark()
        if self._began is None:
            self._began = self._now()
            if self._left is not None:
                self._add(self._left, self._began, is_gap=True)
                self._left = None

    def stop(self) -> None:
        if self._began is not None:
            self._left = self._now()
            self._add(self._began, self._left, is_gap=False)
            self._began = self._mark = None
            if self._parts:
                self._parts.clear()

    def may_stop(self) -> None:
        if self._began is not None:
            self._mark = self._left = self._now()
            self._parts.clear()

    def restart(self) -> None:
        self._began = self._mark = None
        self.start()

    def cancel(self) -> None:
        self._began = self._mark = None

    def leave_gap(self) -> bool:
        if self.running or self._left is None:
            return False
        left, self._left = self._left, None
        if self._mark is None:
            self._add(left, self._now(), is_gap=True)
        else:
            self._parts.append((left, self._now()))
        return True

    def enter_gap(self) -> None:
        if not self.running:
            self._left = self._now()

    def forget_gap(self) -> None:
        self._left = None

    def take_gaps(self) -> float | None:
        seconds, self._gaps = self._gaps, None
        return seconds

    def _end_at_mark(self) -> None:
        if self._began is not None and self._mark is not None:
            self._add(self._began, self._mark, is_gap=False)
            for begin, end in self._parts:
                self._add(begin, end, is_gap=True)
            self._began = self._mark = None
            self._parts.clear()

    def _count(self, seconds: float, *, is_gap: bool) -> None:
        if is_gap:
            self._gaps = (self._gaps or 0.0) + seconds
        else:
            self._seconds += seconds

    def _take_spans(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class WallTimer(_Spans[float]):
    """Wall-clock spans, at both ends of which an accelerator is awaited: its work belongs to the span that gave it.

    Args:
        clock: seconds.
        synchronise: waits for the accelerator; None for work that is done when its call returns.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, synchronise: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._now = clock if synchronise is None else functools.partial(_read_after, synchronise, clock)

    def take(self) -> float:
        self._end_at_mark()
        return self._take_spans()

    def _add(self, begin: float, end: float, *, is_gap: bool) -> None:
        self._count(end - begin, is_gap=is_gap)


def _read_after(synchronise: Callable[[], None], clock: Callable[[], float]) -> float:
    """The time at which the accelerator has done what it was given."""
    synchronise()
    return clock()


class _Pair(NamedTuple):
    """What lies between two events."""

    begin: torch.Event
    end: torch.Event
    is_gap: bool


class EventTimer(_Spans[torch.Event]):
    """Spans between pairs of events on the stream that is current when they begin.

    A gap is what the device, not the host, spends between two spans: a host that runs ahead of it loses nothing.
    Finished pairs are folded into the sums with ``query()``, so that the number of events stays small at any interval.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._stream: torch.Stream | None = None
        self._pending: deque[_Pair] = deque()

    def start(self) -> None:
        if not self.running:
            self._fold_finished()
            self._stream = torch.accelerator.current_stream(self._device)
        super().start()

    def take(self) -> float:
        self._end_at_mark()
        if self._pending:
            self._pending[-1].end.synchronize()
        while self._pending:
            self._fold()
        return self._take_spans()

    def _now(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record(self._stream)
        return event

    def _add(self, begin: torch.Event, end: torch.Event, *, is_gap: bool) -> None:
        self._pending.append(_Pair(begin, end, is_gap))

    def _fold_finished(self) -> None:
        while self._pending and self._pending[0].end.query():
            self._fold()

    def _fold(self) -> None:
        begin, end, is_gap = self._pending.popleft()
        self._count(begin.elapsed_time(end) / 1000.0, is_gap=is_gap)
