"""The packed reduction over two real processes; expected values by hand."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
import torch
import torch.distributed as dist
from support.reductions import (
    DIFFERENT,
    NEXT,
    SAME,
    Operations,
    contents,
    exactly,
    heard,
    run_everywhere,
    stats,
    summary,
    told,
)

from areal_callbacks import stats_tracker
from areal_callbacks.core.reduce import buffer_device, reduce
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.topology import Topology

INF, NAN = math.inf, math.nan


# -- one reduction


def test_unequal_amounts_of_data_give_the_pooled_answer_and_then_two_collectives(two_ranks):
    first, second = [stats(loss=[1.0, 2.0, 6.0])] * 3, [stats(loss=[11.0])] * 3
    results, calls, messages = run_everywhere(two_ranks, first, second)
    assert results == [{"stats": summary("loss", 5.0, 1.0, 11.0)}] * 3
    assert calls == [SAME, NEXT, NEXT]
    assert messages == []


KINDS_OF_EVERYTHING = {
    "average": (ReduceType.AVG, [1.0, 2.0]),
    "total": (ReduceType.SUM, [1.0, 2.0]),
    "low": (ReduceType.MIN, [1.0, 2.0]),
    "high": (ReduceType.MAX, [1.0, 2.0]),
    "lr": (ReduceType.SCALAR, [1.0, 2.0]),
    "valid": (ReduceType.DENOMINATOR, [True, True, False]),
}


def test_every_kind_over_ranks_with_new_keys_and_with_known_ones(two_ranks):
    other = {
        "average": (ReduceType.AVG, [6.0]),
        "total": (ReduceType.SUM, [6.0]),
        "low": (ReduceType.MIN, [-6.0]),
        "high": (ReduceType.MAX, [6.0]),
        "lr": (ReduceType.SCALAR, [6.0]),
        "valid": (ReduceType.DENOMINATOR, [True]),
    }
    results, calls, _ = run_everywhere(two_ranks, [stats(**KINDS_OF_EVERYTHING)] * 2, [stats(**other)] * 2)
    expected = exactly(average=3.0, total=9.0, low=-6.0, high=6.0, lr=3.0, lr__count=3.0, valid=3.0)
    assert results == [{"stats": expected}] * 2
    assert calls == [SAME, NEXT]


def test_ranks_with_different_keys_in_different_order(two_ranks):
    first = stats(only_first=[1.0], both=[1.0, 2.0])
    second = stats(both=[6.0], only_second=[4.0])
    results, calls, _ = run_everywhere(two_ranks, [first] * 2, [second] * 2)
    expected = {**summary("only_first", 1.0, 1.0, 1.0), **summary("both", 3.0, 1.0, 6.0)}
    assert results == [{"stats": {**expected, **summary("only_second", 4.0, 4.0, 4.0)}}] * 2
    assert calls == [DIFFERENT, NEXT]


@pytest.mark.parametrize("nothing", [{}, stats()], ids=["no family", "no key"])
def test_a_rank_with_nothing_takes_part(two_ranks, nothing):
    results, calls, _ = run_everywhere(two_ranks, [nothing] * 3, [stats(x=[2.0])] * 3)
    assert results == [{"stats": summary("x", 2.0, 2.0, 2.0)}] * 3
    assert calls == [DIFFERENT, NEXT, NEXT]


def test_nobody_has_anything(two_ranks):
    results, calls, _ = run_everywhere(two_ranks, [{}, {}, stats()], [{}, {}, {}])
    assert results == [{}, {}, {"stats": {}}]
    assert calls == [NEXT, NEXT, DIFFERENT]


def test_families_of_one_rank_alone(two_ranks):
    throughput = {"throughput": {"sums": {"tokens": [5]}, "maxima": {"seconds": [2.5, 1.0]}}}
    moe = {"moe": {"sums": {"/0": [6, 2, 0, 0]}}}
    first, second = {**throughput, **moe}, {**throughput, **stats(x=[1.0])}
    results, calls, _ = run_everywhere(two_ranks, [first] * 2, [second] * 2)
    expected = {
        "throughput": exactly(tokens=[10.0], seconds=[2.5, 1.0]),
        "moe": exactly(**{"/0": [6.0, 2.0, 0.0, 0.0]}),
        "stats": summary("x", 1.0, 1.0, 1.0),
    }
    assert results == [expected] * 2
    assert calls == [DIFFERENT, NEXT]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", [None, ReduceType.MIN, ReduceType.MAX, ReduceType.AVG, ReduceType.SUM])
def test_nan_of_either_rank_reaches_both(two_ranks, rank, kind):
    script = [[stats(x=(kind, [1.0, 2.0]))] * 2, [stats(x=(kind, [3.0]))] * 2]
    script[rank] = [stats(x=(kind, [NAN, 1.0]))] * 2
    results, _, _ = run_everywhere(two_ranks, *script)
    assert results == [{"stats": summary("x", NAN, NAN, NAN) if kind is None else exactly(x=NAN)}] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_nan_among_the_maxima_of_either_rank_reaches_both(two_ranks, rank):
    script = [[{"t": {"maxima": {"v": [1.0, 5.0, -INF]}}}] * 2 for _ in range(2)]
    script[rank] = [{"t": {"maxima": {"v": [NAN, 2.0, -INF]}}}] * 2
    results, _, _ = run_everywhere(two_ranks, *script)
    assert results == [{"t": exactly(v=[NAN, 5.0, -INF])}] * 2


def test_infinities_are_kept(two_ranks):
    first = stats(x=[INF], y=[1.0], z=[-INF], low=(ReduceType.MAX, [-INF]), high=(ReduceType.MIN, [INF]))
    second = stats(x=[1.0], y=[-INF], z=[INF], low=(ReduceType.MAX, [-INF]), high=(ReduceType.MIN, [INF]))
    results, _, _ = run_everywhere(two_ranks, [first] * 2, [second] * 2)
    expected = {**summary("x", INF, 1.0, INF), **summary("y", -INF, -INF, 1.0), **summary("z", NAN, -INF, INF)}
    assert results == [{"stats": {**expected, **exactly(low=-INF, high=INF)}}] * 2


def test_an_empty_population_on_one_rank_or_on_both(two_ranks):
    first = stats(x=[], none=[], total=(ReduceType.SUM, []), valid=(ReduceType.DENOMINATOR, [False]))
    second = stats(x=[2.0, 4.0], none=[], total=(ReduceType.SUM, []), valid=(ReduceType.DENOMINATOR, [False]))
    results, _, _ = run_everywhere(two_ranks, [first] * 2, [second] * 2)
    assert results == [{"stats": {**summary("x", 3.0, 2.0, 4.0), **exactly(total=0.0, valid=0.0)}}] * 2


def test_large_numbers_are_exact(two_ranks):
    large = stats(step=(ReduceType.SCALAR, [16777217.0]), total=(ReduceType.SUM, [2.0**52]))
    counts = {"moe": {"sums": {"/0": [2**52, 1]}}}
    results, _, _ = run_everywhere(two_ranks, [{**large, **counts}] * 2, [{**large, **counts}] * 2)
    expected = exactly(step=16777217.0, step__count=2.0, total=2.0**53)
    assert results == [{"stats": expected, "moe": exactly(**{"/0": [2.0**53, 2.0]})}] * 2


# -- several exports


def test_a_new_key_on_one_rank_is_agreed_on_once(two_ranks):
    old, new = stats(x=[1.0]), stats(x=[1.0], y=[7.0])
    results, calls, _ = run_everywhere(two_ranks, [old] * 5, [old, old, new, new, old])
    both, x = {**summary("x", 1.0, 1.0, 1.0), **summary("y", 7.0, 7.0, 7.0)}, summary("x", 1.0, 1.0, 1.0)
    assert results == [{"stats": expected} for expected in (x, x, both, both, x)]
    assert calls == [SAME, NEXT, DIFFERENT, NEXT, NEXT]


def test_old_keys_vectors_and_families_do_not_return(two_ranks):
    full = {**stats(x=[1.0], y=[2.0]), "moe": {"sums": {"/0": [1, 2]}, "maxima": {"t": [3]}}}
    results, calls, _ = run_everywhere(two_ranks, [full, {}, stats(y=[4.0]), full], [full, stats(y=[6.0]), {}, full])
    whole = {
        "stats": {**summary("x", 1.0, 1.0, 1.0), **summary("y", 2.0, 2.0, 2.0)},
        "moe": exactly(**{"/0": [2.0, 4.0], "t": [3.0]}),
    }
    assert results == [*(whole, {"stats": summary("y", 6.0, 6.0, 6.0)}, {"stats": summary("y", 4.0, 4.0, 4.0)}, whole)]
    assert calls == [SAME, NEXT, NEXT, NEXT]


def test_the_schema_outgrows_its_buffers(two_ranks):
    def keys(count):
        return stats(**{f"k{index}": [float(index)] for index in range(count)})

    results, calls, _ = run_everywhere(
        two_ranks, [keys(3), keys(700), keys(700), keys(3)], [keys(3), keys(1), keys(2), {}]
    )
    assert [len(result["stats"]) for result in results] == [9, 2100, 2100, 9]
    assert results[2]["stats"]["k699/max"] == "699.0"
    assert results[2]["stats"]["k1/avg"] == "1.0"
    assert calls == [SAME, DIFFERENT, NEXT, NEXT]


@pytest.mark.parametrize("count", [5, 500])
def test_the_number_of_collectives_does_not_depend_on_the_number_of_keys(two_ranks, count):
    export = stats(**{f"k{index}": [1.0] for index in range(count)})
    _, calls, _ = run_everywhere(two_ranks, [export] * 2, [export] * 2)
    assert calls == [SAME, NEXT]


# -- groups


def two_groups(_group):
    rank = dist.get_rank()
    first, second = dist.new_group(), dist.new_group()
    results = []
    for step in range(3):
        keys = {"a": [1.0], **({"b": [2.0]} if step else {})}
        results.append(told(reduce({"stats": contents(**keys)}, first, "x")["stats"]))
        results.append(told(reduce({"stats": contents(c=[float(rank)])}, second, "x")["stats"]))
        results.append(told(reduce({"stats": contents(d=[float(rank)])}, second, "y")["stats"]))
    return results


def test_groups_and_channels_interleave_without_knowing_each_other(two_ranks):
    a, b = summary("a", 1.0, 1.0, 1.0), summary("b", 2.0, 2.0, 2.0)
    c, d = summary("c", 0.5, 0.0, 1.0), summary("d", 0.5, 0.0, 1.0)
    for results in two_ranks.run(two_groups):
        assert results == [a, c, d, {**a, **b}, c, d, {**a, **b}, c, d]


def remade(_group):
    """A group that saw many keys, and its successors."""
    sizes = []
    for count in (600, 2, 600):
        mine = dist.new_group()
        for _ in range(2):
            operations = Operations()
            keys = {f"k{index}": [1.0] for index in range(count)}
            with operations.counting():
                result = reduce({"stats": contents(**keys)}, mine, "x")
            sizes.append((len(result["stats"].metrics()), operations.calls))
        dist.destroy_process_group(mine)
    return sizes


def test_a_group_made_after_another_was_destroyed_starts_afresh(two_ranks):
    for sizes in two_ranks.run(remade):
        assert sizes == [
            *((1800, SAME), (1800, NEXT), (6, SAME), (6, NEXT), (1800, SAME), (1800, NEXT)),
        ]


def devices(group):
    composite = dist.new_group(backend="cpu:gloo")
    return [dist.get_backend(each) for each in (group, composite)], [
        buffer_device(each).type for each in (group, composite)
    ]


def test_a_group_with_a_backend_for_the_cpu_reduces_there(two_ranks):
    for backends, places in two_ranks.run(devices):
        assert backends == ["gloo", "cpu:gloo"]
        assert places == ["cpu", "cpu"]


# -- trackers


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
