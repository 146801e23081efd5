"""A span that may have ended: what comes next decides."""

from __future__ import annotations

from areal_callbacks.monitors.throughput.timer import WallTimer


def test_a_marked_span_ends_at_the_mark_only_if_another_one_starts():
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
