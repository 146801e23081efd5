"""The packed reduction over two real processes; expected values by hand."""

from __future__ import annotations

import math

import pytest
from support.reductions import (
    DIFFERENT,
    NEXT,
    SAME,
    exactly,
    run_everywhere,
    stats,
    summary,
)

from areal_callbacks.core.types import ReduceType

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
