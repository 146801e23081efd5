"""What lies between two spans, on a clock that the test moves; on events: ``test_timer.py``."""

from __future__ import annotations

import pytest
from support.clock import Clock

from areal_callbacks.monitors.throughput.timer import WallTimer


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def test_the_time_between_spans_is_a_gap(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    clock.advance(7.0)
    assert timer.take_gaps() is None
    for outside in (2.0, 4.0, 8.0):
        timer.start()
        clock.advance(1.0)
        timer.stop()
        clock.advance(outside)
    assert timer.take_gaps() == 2.0 + 4.0  # the last one has not ended
    assert timer.take_gaps() is None
    timer.start()
    assert timer.take_gaps() == 8.0


def test_what_is_left_out_of_a_gap(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    assert not timer.leave_gap()
    timer.start()
    assert not timer.leave_gap()
    timer.may_stop()
    timer.stop()
    clock.advance(1.0)
    assert timer.leave_gap()
    clock.advance(10.0)
    timer.enter_gap()
    clock.advance(2.0)
    timer.start()
    timer.stop()
    clock.advance(20.0)
    timer.forget_gap()
    timer.start()
    assert timer.take_gaps() == 3.0


def test_a_gap_after_a_mark_has_the_same_parts_and_is_none_if_the_span_goes_on(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    for goes_on, waited in ((False, 1.0 + 4.0), (True, None)):
        timer.start()
        timer.may_stop()
        clock.advance(1.0)
        assert timer.leave_gap()
        clock.advance(2.0)
        timer.enter_gap()
        clock.advance(4.0)
        timer.stop() if goes_on else timer.start()
        timer.take()
        assert timer.take_gaps() == waited
        timer.cancel()
        timer.forget_gap()
    timer.start()
    timer.may_stop()
    clock.advance(1.0)
    timer.forget_gap()
    timer.start()
    assert timer.take_gaps() is None


def test_a_gap_begins_at_the_mark_if_another_span_starts(clock: Clock) -> None:
    timer = WallTimer(clock=clock)
    timer.start()
    timer.may_stop()
    clock.advance(3.0)
    timer.start()
    clock.advance(1.0)
    timer.may_stop()
    clock.advance(1.0)
    timer.stop()
    assert (timer.take(), timer.take_gaps()) == (2.0, 3.0)
