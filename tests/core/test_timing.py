"""The wall-clock time of blocks, by real clocks."""

from __future__ import annotations

import threading
import time

import pytest

from areal_callbacks.core.timing import Timing
from areal_callbacks.core.tracker import StatsTracker


def test_a_block_is_timed_also_if_it_raises():
    recorded = []

    def fail():
        with Timing(lambda *told: recorded.append(told), "wait"):
            time.sleep(0.02)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    ((name, seconds),) = recorded
    assert name == "wait"
    assert 0.02 <= seconds < 10


def test_a_decorated_function_may_call_itself_and_run_in_threads():
    recorded = []

    @Timing(lambda _, seconds: recorded.append(seconds), "fall")
    def fall(depth):
        time.sleep(0.01)
        return depth if depth == 0 else fall(depth - 1)

    threads = [threading.Thread(target=fall, args=(2,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorded) == 9
    for inner, outer in ((0.01, 3), (0.02, 3), (0.03, 3)):
        assert sum(seconds >= inner for seconds in recorded) >= outer


def test_a_tracker_times_as_a_decorator_too():
    tracker = StatsTracker("rollout")

    @tracker.record_timing("generate")
    def generate(text, *, suffix):
        return text + suffix

    assert [generate("a", suffix="b") for _ in range(3)] == ["ab"] * 3
    exported = tracker.export()
    assert exported["timeperf/generate__count"] == 3
    assert exported["timeperf/generate"] >= 0
