"""Seconds of spans, on a clock that the test moves and on events that the test finishes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.clock import Clock

from areal_callbacks.monitors.throughput.timer import EventTimer, WallTimer, make_timer


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def test_spans_are_summed_and_the_time_between_them_is_not(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    for inside, outside in ((1.0, 10.0), (0.5, 20.0)):
        timer.start()
        assert timer.running
        clock.advance(inside)
        timer.stop()
        assert not timer.running
        clock.advance(outside)
    assert timer.take() == 1.5
    assert timer.take() == 0.0


def test_start_and_stop_are_idempotent(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    timer.stop()
    timer.start()
    clock.advance(1.0)
    timer.start()
    clock.advance(1.0)
    timer.stop()
    clock.advance(1.0)
    timer.stop()
    assert timer.take() == 2.0


def test_a_cancelled_span_is_forgotten(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    timer.start()
    clock.advance(5.0)
    timer.cancel()
    assert not timer.running
    timer.start()
    clock.advance(0.25)
    timer.stop()
    assert timer.take() == 0.25


def test_an_open_span_goes_on_over_an_export(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    timer.start()
    clock.advance(2.0)
    assert timer.take() == 0.0
    clock.advance(1.0)
    timer.stop()
    assert timer.take() == 3.0


class Queue:
    """An accelerator that works while the host goes on, which waits for it in ``synchronise``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done_at = clock.now

    def give(self, seconds: float) -> None:
        self._done_at = max(self._done_at, self._clock.now) + seconds

    def synchronise(self) -> None:
        self._clock.now = max(self._clock.now, self._done_at)


def test_asynchronous_work_counts_in_the_span_that_gave_it_and_no_other_does(clock: Clock) -> None:
    queue = Queue(clock)
    timer = WallTimer(clock=clock, synchronise=queue.synchronise)
    for _ in range(3):
        queue.give(20.0)  # generation, say
        timer.start()
        queue.give(5.0)
        timer.may_stop()
        timer.stop()
        clock.advance(1.0)
    assert timer.take() == 15.0
    timer.start()
    queue.give(2.0)
    assert timer.take() == 0.0  # goes on
    timer.stop()
    assert timer.take() == 2.0


def test_a_mark_counts_what_was_given_before_it(clock: Clock) -> None:
    queue = Queue(clock)
    timer = WallTimer(clock=clock, synchronise=queue.synchronise)
    timer.start()
    queue.give(3.0)
    timer.may_stop()
    queue.give(7.0)  # evaluation
    timer.start()
    queue.give(1.0)
    timer.stop()
    assert timer.take() == 4.0


def test_a_marked_span_ends_at_the_mark_only_if_another_one_starts() -> None:
    times = iter([1.0, 4.0, 10.0, 11.0, 13.0, 20.0, 23.0])  # start, mark, restart, mark, stop; start, mark
    timer = WallTimer(clock=lambda: next(times))
    timer.start()
    timer.may_stop()
    timer.start()  # the wait from 4 to 10 was no training
    timer.may_stop()
    timer.stop()  # the mark at 11 was no end
    assert timer.take() == (4.0 - 1.0) + (13.0 - 10.0)
    timer.start()
    timer.may_stop()
    assert timer.take() == 23.0 - 20.0
    assert not timer.running


class Device:
    """A queue of work, done when the test says so: an event is reached when the work before it is done."""

    def __init__(self) -> None:
        self.submitted = 0.0
        self.done = 0.0
        self.streams: list[str] = []
        self.waits = 0

    def work(self, milliseconds: float) -> None:
        self.submitted += milliseconds


class Event:
    device: Device
    kept: weakref.WeakSet[Event]

    def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
        self.kept.add(self)
        assert enable_timing
        assert device in (torch.device("cuda", 0), torch.device("privateuseone", 0))

    def record(self, stream: str) -> None:
        self.device.streams.append(stream)
        self.at = self.device.submitted

    def query(self) -> bool:
        return self.at <= self.device.done

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.done = max(self.device.done, self.at)

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return other.at - self.at


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Stands in for the events of an accelerator, which this machine need not have."""
    Event.device, Event.kept = (made := Device()), weakref.WeakSet()
    current = {"stream": "main"}
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: current["stream"])
    made.switch = lambda name: current.update(stream=name)  # type: ignore[attr-defined]
    return made


@pytest.fixture
def timer(device: Device) -> EventTimer:
    assert device.waits == 0
    return EventTimer(torch.device("cuda", 0))


def test_event_spans_wait_once_and_in_seconds(timer: EventTimer, device: Device) -> None:
    for inside, outside in ((8.0, 100.0), (2.0, 50.0)):
        timer.start()
        timer.start()
        device.work(inside)
        timer.stop()
        timer.stop()
        device.work(outside)
    assert device.waits == 0
    assert timer.take() == pytest.approx(0.010, rel=1e-12)
    assert device.waits == 1
    assert timer.take() == 0.0
    assert device.waits == 1


def test_gaps_of_events_are_those_of_the_device(timer: EventTimer, device: Device) -> None:
    for outside in (3.0, 0.0, 5.0):
        timer.start()
        device.work(8.0)
        timer.stop()
        device.work(outside)
    timer.leave_gap()
    device.work(100.0)
    timer.enter_gap()
    device.work(1.0)
    timer.start()
    timer.may_stop()
    device.work(2.0)
    timer.start()
    timer.stop()
    device.work(50.0)
    timer.forget_gap()
    timer.start()
    timer.stop()
    assert timer.take() == pytest.approx(0.024)
    assert device.waits == 1
    assert timer.take_gaps() == pytest.approx(0.011)
    assert timer.take_gaps() is None


def test_finished_events_are_folded_while_training(timer: EventTimer, device: Device) -> None:
    for _ in range(1000):
        timer.start()
        device.work(1.0)
        timer.stop()
        device.done = device.submitted - 3.0  # the device is three steps behind
    assert len(Event.kept) <= 8  # of four spans
    assert device.waits == 0
    assert timer.take() == pytest.approx(1.0, rel=1e-9)


def test_a_span_ends_on_the_stream_on_which_it_began(timer: EventTimer, device: Any) -> None:
    timer.start()
    device.switch("side")
    timer.stop()
    assert device.streams == ["main", "main"]
    timer.start()
    assert device.streams[-1] == "side"


def test_open_and_cancelled_event_spans(timer: EventTimer, device: Device) -> None:
    timer.start()
    device.work(5.0)
    timer.cancel()
    assert not timer.running
    timer.start()
    device.work(2.0)
    assert timer.take() == 0.0
    device.work(1.0)
    assert timer.running
    timer.stop()
    assert timer.take() == pytest.approx(0.003, rel=1e-12)


@pytest.mark.parametrize(
    ("device", "kind"), [("cpu", WallTimer), ("cuda:0", EventTimer), ("xpu:0", EventTimer), ("mps", WallTimer)]
)
def test_which_clock_a_device_has(device: str, kind: type) -> None:
    assert type(make_timer(torch.device(device))) is kind


@pytest.mark.usefixtures("device")
def test_an_accelerator_of_another_kind_has_events_if_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = torch.device("privateuseone", 0)
    assert type(make_timer(other)) is EventTimer
    monkeypatch.setattr(Event, "elapsed_time", lambda *_: 1 / 0)
    assert type(make_timer(other)) is WallTimer


def test_real_time_passes() -> None:
    import time

    timer = make_timer(torch.device("cpu"))
    before = time.perf_counter()
    timer.start()
    time.sleep(0.01)
    timer.stop()
    assert 0.01 <= timer.take() <= time.perf_counter() - before


@pytest.mark.parametrize(
    "make", [WallTimer, lambda: WallTimer(synchronise=lambda: None), lambda: EventTimer(torch.device("cuda", 0))]
)
def test_a_timer_is_freed_without_the_collector(make: Callable[[], Any]) -> None:
    timer = make()
    known = weakref.ref(timer)
    del timer
    assert known() is None
