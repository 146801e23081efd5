"""Joining the exports of rollout workers."""

from __future__ import annotations

import math

import pytest

from areal_callbacks.core.merge import merge_worker_stats
from areal_callbacks.core.tracker import StatsTracker


def test_averages_are_weighted_by_their_counts():
    first = {"reward": 1.0, "reward__count": 1}
    second = {"reward": 0.25, "reward__count": 3, "turns": 4.0, "turns__count": 2}
    assert merge_worker_stats([first, second]) == {
        **{"reward": 0.4375, "reward__count": 4.0, "turns": 4.0, "turns__count": 2.0}
    }


def test_a_merge_of_merges_is_the_merge_of_all():
    exports = [{"x": float(value), "x__count": count} for value, count in [(1, 1), (2, 4), (8, 2), (3, 1)]]
    halves = [merge_worker_stats(exports[:2]), merge_worker_stats(exports[2:])]
    expected = {"x": (1 + 8 + 16 + 3) / 8, "x__count": 8.0}
    assert merge_worker_stats(halves) == expected
    assert merge_worker_stats(exports) == expected
    assert merge_worker_stats([expected]) == expected


def test_values_without_weight_are_left_out():
    exports = [{"loss/avg": 1.0, "x": math.nan, "x__count": 0, "y": math.inf}, {"x": 2.0, "x__count": 1}]
    assert merge_worker_stats(exports) == {"x": 2.0, "x__count": 1.0}
    assert merge_worker_stats([]) == {}


def test_workers_that_share_no_group_give_the_mean_of_all_their_scalars():
    rewards = [[1.0], [0.0, 0.5, 1.0], []]
    exports = []
    for worker in rewards:
        tracker = StatsTracker("rollout")
        for reward in worker:
            tracker.scalar(reward=reward)
        exports.append(tracker.export())
    merged = merge_worker_stats(exports)
    assert merged == {"rollout/reward": pytest.approx(2.5 / 4), "rollout/reward__count": 4.0}
