"""Ranks with different keys come to one schema: two to four real processes, and groups of some of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from support.distributed import Ranks
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

from areal_callbacks.core import agreement, channel
from areal_callbacks.core.reduce import _CHANNELS, reduce
from areal_callbacks.core.schema import Schema
from areal_callbacks.core.types import ReduceType


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.close()


def test_the_order_of_recording_needs_no_exchange_of_keys(four_ranks):
    scripts = [[stats(**{key: [1.0] for key in order})] * 2 for order in ("abc", "cab", "bca", "abc")]
    results, calls, messages = run_everywhere(four_ranks, *scripts)
    expected = summary("a", 1.0, 1.0, 1.0) | summary("b", 1.0, 1.0, 1.0) | summary("c", 1.0, 1.0, 1.0)
    assert results == [{"stats": expected}] * 2
    assert calls == [SAME, NEXT]
    assert messages == []


def in_order(group):
    keys = reduce({"stats": contents(z=[1.0], a=[1.0], m=[1.0])}, group, "order")["stats"].keys
    return [key for key, _ in keys]


def test_equal_ranks_keep_the_order_in_which_they_record(four_ranks):
    assert four_ranks.run(in_order) == [["z", "a", "m"]] * 4


def test_stages_of_a_pipeline_and_ranks_that_repeat_others(four_ranks):
    """Two stages with layers of their own; of each, one rank brings nothing."""
    first, second = ({"moe": {"sums": {f"/{layer}": [layer, 1]}}, **stats(x=[float(layer)])} for layer in (1, 2))
    nothing = {"moe": {}, "stats": {}}
    results, calls, _ = run_everywhere(four_ranks, [first] * 2, [nothing] * 2, [second] * 2, [nothing] * 2)
    moe = exactly(**{"/1": [1.0, 1.0], "/2": [2.0, 1.0]})
    assert results == [{"moe": moe, "stats": summary("x", 1.5, 1.0, 2.0)}] * 2
    assert calls == [DIFFERENT, NEXT]


def test_keys_that_come_one_after_the_other_on_four_ranks(four_ranks):
    def key(name):
        return stats(**{name: (ReduceType.SUM, [1.0])})

    a, b, c, late = map(key, ("a", "b", "c", "late"))
    scripts = [{}, {}, {}, late], [a, b, {}, {}], [a, {}, c, {}], [{}, {}, {}, a]
    results, calls, _ = run_everywhere(four_ranks, *scripts)
    assert [result["stats"] for result in results] == [
        exactly(a=2.0),
        exactly(b=1.0),
        exactly(c=1.0),
        exactly(late=1.0, a=1.0),
    ]
    assert calls == [DIFFERENT] * 4


def test_a_family_that_fails_on_the_rank_that_alone_knows_it(four_ranks):
    good, bad = {**stats(x=[1.0]), "moe": {"sums": {"/0": [1]}}}, {**stats(x=[1.0]), "moe": None}
    results, calls, messages = run_everywhere(four_ranks, *[[stats(x=[1.0])] * 3] * 3, [bad, good, good])
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    whole = {**without, "moe": exactly(**{"/0": [1.0]})}
    assert results == [without, whole, whole]
    assert calls == [DIFFERENT, DIFFERENT, NEXT]
    assert len(messages) == 1


# -- groups of some ranks


def subgroups(_group):
    """Overlapping groups in which a rank's number is not its number in the world."""
    rank = dist.get_rank()
    results = []
    for members in ([1, 2, 3], [0, 3], [2, 1]):
        group = dist.new_group(members)
        if rank in members:
            keys = {"all": [float(rank)], f"only_{rank}": [float(rank)]}
            export = [told(reduce({"stats": contents(**keys)}, group, "subgroup")["stats"]) for _ in range(2)]
            results.append((members, export))
    return results


def test_groups_of_some_ranks_agree_among_themselves(four_ranks):
    for results in four_ranks.run(subgroups):
        for members, exports in results:
            average = sum(members) / len(members)
            expected = summary("all", average, float(min(members)), float(max(members)))
            for member in map(float, members):
                expected |= summary(f"only_{member:.0f}", member, member, member)
            assert exports == [expected] * 2


# -- limits


def rare_names(group, limit):
    """Each rank has a name of its own, more of them than the limit lets through; later all have a new one."""
    rank, whole, results = dist.get_rank(group), agreement.LIMIT, []
    agreement.LIMIT = limit
    with heard() as messages:
        for export in range(4):
            keys = {"common": [float(rank)], f"of_rank_{rank}": [1.0], **({"late": [2.0]} if export > 1 else {})}
            operations = Operations()
            with operations.counting():
                reduced = told(reduce({"stats": contents(**keys)}, group, "rare")["stats"])
            results.append((reduced, operations.calls))
    agreement.LIMIT = whole
    return results, messages


def test_too_many_rare_names_cost_only_themselves(four_ranks):
    outcomes = four_ranks.run(rare_names, 200)
    results = outcomes[0][0]
    common, late = summary("common", 1.5, 0.0, 3.0), summary("late", 2.0, 2.0, 2.0)
    assert [calls for _, calls in results] == [DIFFERENT, NEXT, SAME, NEXT]
    rare = {name for name in results[0][0] if name.startswith("of_rank")}
    assert len(rare) == 2 * 3
    for reduced, _ in results[:2]:
        assert reduced == common | dict.fromkeys(rare, "1.0")
    for reduced, _ in results[2:]:
        assert reduced == common | late | dict.fromkeys(rare, "1.0")
    assert all(same == results for same, _ in outcomes)
    refused = [f"of_rank_{rank}" for rank in range(4) if f"of_rank_{rank}/avg" not in rare]
    ((rank, message),) = [(rank, message) for rank, (_, messages) in enumerate(outcomes) for message in messages]
    assert "2 different lists of names are left out" in message
    assert f"of_rank_{rank}" in refused
    assert f"of_rank_{rank}" in message


def passing_names(group, limit):
    whole, results = channel.LIMIT, []
    channel.LIMIT = limit
    with heard() as messages:
        for export in range(12):
            reduced = reduce({"stats": contents(x=[1.0], **{f"step_{export}": [2.0]})}, group, "passing")
            results.append((told(reduced["stats"]), len(_CHANNELS[group]["passing"].schema)))
    channel.LIMIT = whole
    return results, messages


def test_names_that_come_and_go_do_not_pile_up(two_ranks):
    for results, messages in two_ranks.run(passing_names, 6):
        for export, (metrics, known) in enumerate(results):
            assert metrics == summary("x", 1.0, 1.0, 1.0) | summary(f"step_{export}", 2.0, 2.0, 2.0)
            assert known <= 6 + 1
        (message,) = messages
        assert "more than 6 names" in message


def many_names(group, limit):
    """More names than the limit, all in use."""
    whole, calls = channel.LIMIT, []
    channel.LIMIT = limit
    for _ in range(3):
        operations = Operations()
        with operations.counting():
            reduced = reduce({"stats": contents(**{f"k{index}": [1.0] for index in range(20)})}, group, "many")
        calls.append((len(reduced["stats"].keys), operations.calls))
    channel.LIMIT = whole
    return calls


def test_many_names_in_use_stay_known(two_ranks):
    assert two_ranks.run(many_names, 6) == [[(20, SAME), (20, NEXT), (20, NEXT)]] * 2


# -- a schema as bytes


def test_a_schema_survives_the_way_to_another_rank():
    odd = {"é \ud800/x": [1.0], "b": (ReduceType.MAX, [1.0])}
    parts = {"a": contents(sums={"v": [1, 2]}, maxima={"w": [1.0]}, **odd), "failed": None}
    schema = Schema.of(parts)
    assert Schema.decode(schema.encode()) == schema
    assert len(schema) == 2 + 2 + 1 + 1


def test_the_hash_of_a_schema_tells_sets_of_keys_apart():
    keys = [("f", key, kind) for key in "ab" for kind in ReduceType]
    sets = [frozenset(chosen) for size in (1, 2, 3) for chosen in itertools.combinations(keys, size)]
    hashes = {Schema(("f",), tuple(chosen)).ordered.identity for chosen in sets}
    assert len(hashes) == len(sets)
    assert all(0 <= value < 2**52 and value == int(value) for value in hashes)
