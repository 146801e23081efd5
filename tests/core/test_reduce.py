"""The packed reduction over two real processes; expected values by hand.

Most tests are a script: per rank a list of exports, an export being ``{family: contents}``. What every rank returns is
compared with the expectation and thereby with each other, bit for bit where no expectation is rounded.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks import stats_tracker
from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import buffer_device, reduce
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.safety import reporting
from areal_callbacks.topology import Topology

INF, NAN = math.inf, math.nan
FIRST, NEXT = ["MAX", "gather"], ["MAX", "SUM"]
C10D = {"MAX": ["allreduce_"], "SUM": ["allreduce_"], "gather": ["allgather_", "allgather_"]}


def contents(*, sums=None, maxima=None, **stats):
    """Records of values per key: a list for AVG_MIN_MAX, ``(ReduceType, list)`` for the other kinds."""
    tracker = StatsTracker()
    for key, values in stats.items():
        kind, values = values if isinstance(values, tuple) else (None, values)
        if kind is ReduceType.SCALAR:
            for value in values:
                tracker.scalar(**{key: value})
        elif kind is ReduceType.DENOMINATOR:
            tracker.denominator(**{key: torch.tensor(values)})
        else:
            tensor = torch.tensor(values, dtype=torch.float64)
            tracker.stat_compact(torch.ones_like(tensor, dtype=torch.bool), kind, **{key: tensor})
    records = tracker.collect()
    for field, vectors in (("sums", sums), ("maxima", maxima)):
        for name, values in (vectors or {}).items():
            getattr(records, field)[name] = torch.tensor(values) if isinstance(values, list) else values
    return records


class Operations(TorchDispatchMode):
    """Counts collectives twice: as Python calls with their reduction, and as c10d operations."""

    def __init__(self):
        super().__init__()
        self.calls, self.c10d = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.c10d.append(func.name().removeprefix("c10d::"))
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def counting(self):
        all_reduce, all_gather_object = dist.all_reduce, dist.all_gather_object

        def reduced(tensor, op=dist.ReduceOp.SUM, group=None):
            self.calls.append("MAX" if op == dist.ReduceOp.MAX else "SUM")
            return all_reduce(tensor, op=op, group=group)

        def gathered(*args, **kwargs):
            self.calls.append("gather")
            return all_gather_object(*args, **kwargs)

        dist.all_reduce, dist.all_gather_object = reduced, gathered
        try:
            with self:
                yield
        finally:
            dist.all_reduce, dist.all_gather_object = all_reduce, all_gather_object


@contextlib.contextmanager
def heard():
    """The warnings logged inside the block."""
    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    reporting.reset()
    reporting.logger.addHandler(handler)
    try:
        yield messages
    finally:
        reporting.logger.removeHandler(handler)


def told(records):
    """Reduced records as plain values, floats exact and NaN comparable."""
    vectors = {**records.sums, **records.maxima}
    summaries = Records(records.keys, records.rows)  # the vectors here are no sums of formulas
    plain = {**summaries.metrics(), **{name: vector.tolist() for name, vector in vectors.items()}}
    return {name: repr(value) for name, value in plain.items()}


def run_script(group, script):
    results, calls = [], []
    with heard() as messages:
        for export in script[dist.get_rank(group)]:
            families = {name: None if part is None else contents(**part) for name, part in export.items()}
            operations = Operations()
            with operations.counting():
                reduced = reduce(families, group, channel="test")
            assert operations.c10d == [name for call in operations.calls for name in C10D[call]]
            results.append({name: told(records) for name, records in reduced.items()})
            calls.append(operations.calls)
    return results, calls, messages


def reduced(two_ranks, *script):
    """What both ranks agree on: (results, collective calls, messages)."""
    first, second = two_ranks.run(run_script, script)
    assert first == second
    return first


def exactly(**values):
    return {name: repr(value) for name, value in values.items()}


def stats(**values):
    return {"stats": values}


def summary(name, average, minimum, maximum):
    return exactly(**{f"{name}/avg": average, f"{name}/min": minimum, f"{name}/max": maximum})


# -- one reduction


def test_unequal_amounts_of_data_give_the_pooled_answer_and_then_two_collectives(two_ranks):
    first, second = [stats(loss=[1.0, 2.0, 6.0])] * 3, [stats(loss=[11.0])] * 3
    results, calls, messages = reduced(two_ranks, first, second)
    assert results == [{"stats": summary("loss", 5.0, 1.0, 11.0)}] * 3
    assert calls == [FIRST, NEXT, NEXT]
    assert messages == []


KINDS_OF_EVERYTHING = {
    "average": (ReduceType.AVG, [1.0, 2.0]),
    "total": (ReduceType.SUM, [1.0, 2.0]),
    "low": (ReduceType.MIN, [1.0, 2.0]),
    "high": (ReduceType.MAX, [1.0, 2.0]),
    "lr": (ReduceType.SCALAR, [1.0, 2.0]),
    "valid": (ReduceType.DENOMINATOR, [True, True, False]),
}


def test_every_kind_over_ranks_by_gather_and_by_collectives(two_ranks):
    other = {
        "average": (ReduceType.AVG, [6.0]),
        "total": (ReduceType.SUM, [6.0]),
        "low": (ReduceType.MIN, [-6.0]),
        "high": (ReduceType.MAX, [6.0]),
        "lr": (ReduceType.SCALAR, [6.0]),
        "valid": (ReduceType.DENOMINATOR, [True]),
    }
    results, calls, _ = reduced(two_ranks, [stats(**KINDS_OF_EVERYTHING)] * 2, [stats(**other)] * 2)
    expected = exactly(average=3.0, total=9.0, low=-6.0, high=6.0, lr=3.0, lr__count=3.0, valid=3.0)
    assert results == [{"stats": expected}] * 2
    assert calls == [FIRST, NEXT]


def test_ranks_with_different_keys_in_different_order(two_ranks):
    first = stats(only_first=[1.0], both=[1.0, 2.0])
    second = stats(both=[6.0], only_second=[4.0])
    results, calls, _ = reduced(two_ranks, [first] * 2, [second] * 2)
    expected = {**summary("only_first", 1.0, 1.0, 1.0), **summary("both", 3.0, 1.0, 6.0)}
    assert results == [{"stats": {**expected, **summary("only_second", 4.0, 4.0, 4.0)}}] * 2
    assert calls == [FIRST, NEXT]


@pytest.mark.parametrize("nothing", [{}, stats()], ids=["no family", "no key"])
def test_a_rank_with_nothing_takes_part(two_ranks, nothing):
    results, calls, _ = reduced(two_ranks, [nothing] * 3, [stats(x=[2.0])] * 3)
    assert results == [{"stats": summary("x", 2.0, 2.0, 2.0)}] * 3
    assert calls == [FIRST, NEXT, NEXT]


def test_nobody_has_anything(two_ranks):
    results, calls, _ = reduced(two_ranks, [{}, {}, stats()], [{}, {}, {}])
    assert results == [{}, {}, {"stats": {}}]
    assert calls == [NEXT, NEXT, FIRST]


def test_families_of_one_rank_alone(two_ranks):
    throughput = {"throughput": {"sums": {"tokens": [5]}, "maxima": {"seconds": [2.5, 1.0]}}}
    moe = {"moe": {"sums": {"/0": [6, 2, 0, 0]}}}
    first, second = {**throughput, **moe}, {**throughput, **stats(x=[1.0])}
    results, calls, _ = reduced(two_ranks, [first] * 2, [second] * 2)
    expected = {
        "throughput": exactly(tokens=[10.0], seconds=[2.5, 1.0]),
        "moe": exactly(**{"/0": [6.0, 2.0, 0.0, 0.0]}),
        "stats": summary("x", 1.0, 1.0, 1.0),
    }
    assert results == [expected] * 2
    assert calls == [FIRST, NEXT]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", [None, ReduceType.MIN, ReduceType.MAX, ReduceType.AVG, ReduceType.SUM])
def test_nan_of_either_rank_reaches_both(two_ranks, rank, kind):
    script = [[stats(x=(kind, [1.0, 2.0]))] * 2, [stats(x=(kind, [3.0]))] * 2]
    script[rank] = [stats(x=(kind, [NAN, 1.0]))] * 2
    results, _, _ = reduced(two_ranks, *script)
    assert results == [{"stats": summary("x", NAN, NAN, NAN) if kind is None else exactly(x=NAN)}] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_nan_among_the_maxima_of_either_rank_reaches_both(two_ranks, rank):
    script = [[{"t": {"maxima": {"v": [1.0, 5.0, -INF]}}}] * 2 for _ in range(2)]
    script[rank] = [{"t": {"maxima": {"v": [NAN, 2.0, -INF]}}}] * 2
    results, _, _ = reduced(two_ranks, *script)
    assert results == [{"t": exactly(v=[NAN, 5.0, -INF])}] * 2


def test_infinities_are_kept(two_ranks):
    first = stats(x=[INF], y=[1.0], z=[-INF], low=(ReduceType.MAX, [-INF]), high=(ReduceType.MIN, [INF]))
    second = stats(x=[1.0], y=[-INF], z=[INF], low=(ReduceType.MAX, [-INF]), high=(ReduceType.MIN, [INF]))
    results, _, _ = reduced(two_ranks, [first] * 2, [second] * 2)
    expected = {**summary("x", INF, 1.0, INF), **summary("y", -INF, -INF, 1.0), **summary("z", NAN, -INF, INF)}
    assert results == [{"stats": {**expected, **exactly(low=-INF, high=INF)}}] * 2


def test_an_empty_population_on_one_rank_or_on_both(two_ranks):
    first = stats(x=[], none=[], total=(ReduceType.SUM, []), valid=(ReduceType.DENOMINATOR, [False]))
    second = stats(x=[2.0, 4.0], none=[], total=(ReduceType.SUM, []), valid=(ReduceType.DENOMINATOR, [False]))
    results, _, _ = reduced(two_ranks, [first] * 2, [second] * 2)
    assert results == [{"stats": {**summary("x", 3.0, 2.0, 4.0), **exactly(total=0.0, valid=0.0)}}] * 2


def test_large_numbers_are_exact(two_ranks):
    large = stats(step=(ReduceType.SCALAR, [16777217.0]), total=(ReduceType.SUM, [2.0**52]))
    counts = {"moe": {"sums": {"/0": [2**52, 1]}}}
    results, _, _ = reduced(two_ranks, [{**large, **counts}] * 2, [{**large, **counts}] * 2)
    expected = exactly(step=16777217.0, step__count=2.0, total=2.0**53)
    assert results == [{"stats": expected, "moe": exactly(**{"/0": [2.0**53, 2.0]})}] * 2


# -- several exports


def test_a_new_key_on_one_rank_costs_one_gather(two_ranks):
    old, new = stats(x=[1.0]), stats(x=[1.0], y=[7.0])
    results, calls, _ = reduced(two_ranks, [old] * 5, [old, old, new, new, old])
    both, x = {**summary("x", 1.0, 1.0, 1.0), **summary("y", 7.0, 7.0, 7.0)}, summary("x", 1.0, 1.0, 1.0)
    assert results == [{"stats": expected} for expected in (x, x, both, both, x)]
    assert calls == [FIRST, NEXT, FIRST, NEXT, NEXT]


def test_old_keys_vectors_and_families_do_not_return(two_ranks):
    full = {**stats(x=[1.0], y=[2.0]), "moe": {"sums": {"/0": [1, 2]}, "maxima": {"t": [3]}}}
    results, calls, _ = reduced(two_ranks, [full, {}, stats(y=[4.0]), full], [full, stats(y=[6.0]), {}, full])
    whole = {
        "stats": {**summary("x", 1.0, 1.0, 1.0), **summary("y", 2.0, 2.0, 2.0)},
        "moe": exactly(**{"/0": [2.0, 4.0], "t": [3.0]}),
    }
    assert results == [*(whole, {"stats": summary("y", 6.0, 6.0, 6.0)}, {"stats": summary("y", 4.0, 4.0, 4.0)}, whole)]
    assert calls == [FIRST, NEXT, NEXT, NEXT]


def test_the_schema_outgrows_its_buffers(two_ranks):
    def keys(count):
        return stats(**{f"k{index}": [float(index)] for index in range(count)})

    results, calls, _ = reduced(two_ranks, [keys(3), keys(700), keys(700), keys(3)], [keys(3), keys(1), keys(2), {}])
    assert [len(result["stats"]) for result in results] == [9, 2100, 2100, 9]
    assert results[2]["stats"]["k699/max"] == "699.0"
    assert results[2]["stats"]["k1/avg"] == "1.0"
    assert calls == [FIRST, FIRST, NEXT, NEXT]


@pytest.mark.parametrize("count", [5, 500])
def test_the_number_of_collectives_does_not_depend_on_the_number_of_keys(two_ranks, count):
    export = stats(**{f"k{index}": [1.0] for index in range(count)})
    _, calls, _ = reduced(two_ranks, [export] * 2, [export] * 2)
    assert calls == [FIRST, NEXT]


# -- failures


@pytest.mark.parametrize("rank", [0, 1])
def test_a_family_that_failed_on_one_rank_vanishes_with_one_message_and_comes_back(two_ranks, rank):
    good, bad = {**stats(x=[1.0]), "moe": {"sums": {"/0": [1, 2]}}}, {**stats(x=[1.0]), "moe": None}
    script = [[good] * 5, [good] * 5]
    script[rank] = [bad, good, bad, bad, good]
    results, calls, messages = reduced(two_ranks, *script)
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    whole = {**without, "moe": exactly(**{"/0": [2.0, 4.0]})}
    assert results == [without, whole, without, without, whole]
    assert calls[1:] == [NEXT] * 4
    (message,) = messages
    assert "'moe' failed on a rank" in message


def test_a_key_of_two_kinds_is_left_out_everywhere_with_one_message(two_ranks):
    first = stats(k=(ReduceType.SUM, [1.0]), x=[1.0])
    second = stats(k=(ReduceType.MAX, [1.0]), x=[1.0])
    results, _, messages = reduced(two_ranks, [first] * 3, [second, second, first])
    x = summary("x", 1.0, 1.0, 1.0)
    assert results == [{"stats": x}, {"stats": x}, {"stats": {**x, **exactly(k=2.0)}}]
    assert len(messages) == 1


@pytest.mark.parametrize("field", ["sums", "maxima"])
def test_vectors_of_different_widths_fail_their_family_everywhere_with_one_message(two_ranks, field):
    def export(width):
        return {**stats(x=[1.0]), "moe": {field: {"v": [1.0] * width, "w": [1.0]}}}

    results, calls, messages = reduced(
        two_ranks, [export(1), export(1), export(4), export(4)], [export(4), export(4), export(4), export(1)]
    )
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    each = 2.0 if field == "sums" else 1.0
    assert results == [without, without, {**without, "moe": exactly(v=[each] * 4, w=[each])}, without]
    assert calls == [FIRST, NEXT, NEXT, NEXT]
    assert len(messages) == 1


def unreadable(group, rank, values):
    """A rank whose records cannot be packed, before and after the schema is known."""
    results = []
    with heard() as messages:
        for broken in (True, False, True, False):
            part = contents(sums={"v": [1.0, 2.0]})
            if broken and dist.get_rank(group) == rank:
                part.sums["v"] = values
            export = reduce({"bad": part, "stats": contents(x=[1.0])}, group, "unreadable")
            results.append({name: told(records) for name, records in export.items()})
    return results, len([message for message in messages if "failed on a rank" in message])


@pytest.mark.parametrize("values", [None, torch.ones(2, 2), torch.tensor(1.0)], ids=["none", "matrix", "number"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_while_packing_on_one_rank_hangs_nobody(two_ranks, rank, values):
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    whole = {"bad": exactly(v=[2.0, 4.0]), **without}
    for results, messages in two_ranks.run(unreadable, rank, values):
        assert results == [without, whole, without, whole]
        assert messages == 1


def test_without_a_group_a_failed_family_is_absent(caplog):
    broken = Records(sums={"v": torch.ones(2, 2)})
    result = reduce({"a": None, "b": broken, "stats": contents(x=[1.0])}, None, "local")
    assert list(result) == ["stats"]
    assert sorted(message.partition(" failed on a rank")[0] for message in caplog.messages)[:2] == ["'a'", "'b'"]


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
            *((1800, FIRST), (1800, NEXT), (6, FIRST), (6, NEXT), (1800, FIRST), (1800, NEXT)),
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
