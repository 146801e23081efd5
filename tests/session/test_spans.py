"""Blocks that are taken out of the training time, and calls that are counted in, on a clock that the test moves."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from areal_callbacks.monitors.throughput.timer import WallTimer
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session.spans import CountIn, include_calls, leave_out, set_aside


class Stopwatch:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer = WallTimer(clock=lambda: self.now)
        self.end, self.may_end = self.timer.stop, self.timer.may_stop
        self.leave_gap, self.enter_gap = self.timer.leave_gap, self.timer.enter_gap

    def begin(self, *, trains: bool = True) -> None:
        self.timer.start()

    @property
    def running(self) -> bool:
        return self.timer.running

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_block_outside_of_a_span_is_one_of_its_own() -> None:
    watch = Stopwatch()
    watch.wait(1.0)
    with CountIn(watch):
        watch.wait(2.0)
    watch.wait(4.0)
    watch.begin()
    watch.wait(8.0)
    watch.end()
    assert watch.timer.take() == 2.0 + 8.0


def test_a_block_inside_of_a_span_belongs_to_it() -> None:
    watch = Stopwatch()
    watch.begin()
    with CountIn(watch):
        watch.wait(1.0)
    watch.wait(2.0)
    watch.end()
    assert watch.timer.take() == 3.0


def test_after_a_span_that_may_have_ended_the_block_counts_and_the_wait_before_it_does_not() -> None:
    watch = Stopwatch()
    watch.begin()
    watch.wait(1.0)
    watch.may_end()  # backward
    watch.wait(10.0)  # the next batch is fetched
    with CountIn(watch):
        watch.wait(2.0)  # and moved
    watch.wait(20.0)
    watch.begin()  # a forward
    watch.wait(4.0)
    watch.end()
    assert watch.timer.take() == 1.0 + 2.0 + 4.0


def test_the_optimizers_step_after_a_block_still_counts() -> None:
    watch = Stopwatch()
    watch.begin()
    watch.may_end()
    with CountIn(watch):
        watch.wait(1.0)
    watch.wait(2.0)  # the optimizer steps
    watch.end()
    assert watch.timer.take() == 3.0


@pytest.mark.parametrize("running", [False, True])
def test_what_is_left_out_ends_an_open_span_for_a_while(running: bool) -> None:
    watch = Stopwatch()
    if running:
        watch.begin()
    watch.wait(1.0)
    with contextlib.suppress(KeyError), leave_out(watch):
        watch.wait(2.0)
        raise KeyError
    watch.wait(4.0)
    watch.end()
    assert watch.timer.take() == (5.0 if running else 0.0)


def one_step(watch: Stopwatch, seconds: float = 1.0) -> None:
    watch.begin()
    watch.wait(seconds)
    watch.end()


def test_what_is_left_out_between_two_steps_is_no_waiting() -> None:
    watch = Stopwatch()
    with leave_out(watch):
        watch.wait(100.0)  # before the first step nothing waits
    one_step(watch)
    watch.wait(2.0)
    with leave_out(watch):
        watch.wait(100.0)
    watch.wait(4.0)
    one_step(watch)
    assert (watch.timer.take(), watch.timer.take_gaps()) == (2.0, 6.0)


def test_a_block_that_waits_ends_the_step_and_is_waiting() -> None:
    watch = Stopwatch()
    watch.begin()
    watch.wait(1.0)
    with leave_out(watch, waits=True):
        watch.wait(8.0)
    watch.wait(1.0)
    with leave_out(watch):
        watch.wait(100.0)
    watch.end()
    assert (watch.timer.take(), watch.timer.take_gaps()) == (2.0, 8.0)


@pytest.mark.parametrize("running", [False, True])
def test_what_is_set_aside_changes_no_span(running: bool) -> None:
    watch = Stopwatch()
    one_step(watch)
    watch.wait(1.0)
    if running:
        watch.begin()
    with set_aside(watch):
        watch.wait(16.0)
    watch.wait(2.0)
    one_step(watch)
    assert watch.timer.take() == (1.0 + 16.0 + 2.0 + 1.0 if running else 2.0)
    assert watch.timer.take_gaps() == (1.0 if running else 3.0)


def test_calls_of_the_host_count_where_they_belong_to_training() -> None:
    watch, patches = Stopwatch(), Patches("test")
    host = SimpleNamespace(move=lambda batch, device: (watch.wait(1.0), batch + device)[1])
    include_calls(patches, host, "move", lambda: CountIn(watch), lambda batch: batch == "train")
    assert [host.move("train", " here"), host.move("test", " there")] == ["train here", "test there"]
    assert watch.timer.take() == 1.0
    patches.undo()
    host.move("train", "")
    assert watch.timer.take() == 0.0
