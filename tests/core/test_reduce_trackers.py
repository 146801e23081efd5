"""What trackers export over real processes, and what it costs."""

from __future__ import annotations

import contextlib
import time

import torch
import torch.distributed as dist
from support.reductions import (
    Operations,
)

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.topology import Topology


def exported_trackers(group):
    """A named tracker that exists on the second rank alone, and one key timed by two trackers."""
    rank = dist.get_rank(group)
    results = []
    for step in range(3):
        stats_tracker.scalar(lr=0.5)
        if rank == 1:
            stats_tracker.get("only-second").scalar(reward=float(step))
            stats_tracker.get("only-second")._accumulator.add_scalars("timeperf/", {"step": 3.0})
        stats_tracker._DEFAULT._accumulator.add_scalars("timeperf/", {"step": 1.0})
        results.append(stats_tracker.export_all(reduce_group=group))
    return results


def test_a_named_tracker_of_one_rank_and_a_timing_of_two_trackers(two_ranks):
    for results in two_ranks.run(exported_trackers):
        for step, result in enumerate(results):
            assert result == {
                **{"lr": 0.5, "lr__count": 2.0, "timeperf/step": 5.0 / 3, "timeperf/step__count": 3.0},
                **{"only-second/reward": float(step), "only-second/reward__count": 1.0},
            }


def exported_key(group):
    tracker = StatsTracker("actor")
    values = torch.tensor([1.0, 5.0]) + dist.get_rank(group)
    with tracker.scope("update"):
        tracker.stat_compact(torch.tensor([True, True]), loss=values, kept=values)
        kept = tracker.export(key="loss", reduce_group=group, reset=False)
        one = tracker.export(key="loss", reduce_group=group)
    return kept, one, tracker.export(reduce_group=group)


def test_one_key_of_a_tracker_is_reduced_and_the_rest_stays(two_ranks):
    for kept, one, rest in two_ranks.run(exported_key):
        expected = {"/avg": 3.5, "/min": 1.0, "/max": 6.0}
        assert kept == one == {f"actor/update/loss{suffix}": value for suffix, value in expected.items()}
        assert rest == {f"actor/update/kept{suffix}": value for suffix, value in expected.items()}


def ten_stats(group):
    tracker = StatsTracker()
    operations = Operations()
    for counting in (contextlib.nullcontext(), operations.counting()):
        tracker.denominator(valid=torch.ones(4, dtype=torch.bool))
        tracker.stat("valid", **{f"stat{index}": torch.rand(4) for index in range(10)})
        tracker.scalar(lr=0.1, eps=0.2)
        with counting:
            values = tracker.export(reduce_group=group)
    return operations.c10d, len(values)


def test_ten_stats_two_scalars_and_a_mask_cost_two_collectives(two_ranks):
    for operations, values in two_ranks.run(ten_stats):
        assert operations == ["allreduce_", "allreduce_"]
        assert values == 10 * 3 + 2 * 2 + 1


def slow_rank(group):
    """One rank arrives late and the other records meanwhile: nothing of it is lost."""
    tracker = StatsTracker()
    tracker.scalar(x=1.0)
    if dist.get_rank(group) == 1:
        time.sleep(0.1)
    first = tracker.export(reduce_group=group)
    tracker.scalar(x=2.0)
    return first, tracker.export(reduce_group=group)


def test_ranks_need_not_arrive_together(two_ranks):
    for first, second in two_ranks.run(slow_rank):
        assert (first, second) == ({"x": 1.0, "x__count": 2.0}, {"x": 2.0, "x__count": 2.0})


def test_topology_of_the_default_group(two_ranks):
    for rank, (size, is_writer, other) in enumerate(two_ranks.run(places)):
        assert (size, is_writer, other) == (2, rank == 0, rank == 1)
    alone = Topology.data_parallel()
    assert (alone.world, alone.size, alone.is_writer) == (None, 1, True)


def places(_group):
    topology = Topology.data_parallel()
    return topology.size, topology.is_writer, Topology.data_parallel(writer_rank=1).is_writer
