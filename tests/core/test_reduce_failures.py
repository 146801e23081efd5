"""Ranks that cannot bring what they recorded, over real processes: nobody waits for them, and only that is missing."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.reductions import (
    DIFFERENT,
    NEXT,
    Operations,
    contents,
    exactly,
    heard,
    run_everywhere,
    stats,
    summary,
    told,
)

from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import _CHANNELS, reduce
from areal_callbacks.core.schema import Schema
from areal_callbacks.core.types import ReduceType


@pytest.mark.parametrize("rank", [0, 1])
def test_a_family_that_failed_on_one_rank_vanishes_with_one_message_and_comes_back(two_ranks, rank):
    good, bad = {**stats(x=[1.0]), "moe": {"sums": {"/0": [1, 2]}}}, {**stats(x=[1.0]), "moe": None}
    script = [[good] * 5, [good] * 5]
    script[rank] = [bad, good, bad, bad, good]
    results, calls, messages = run_everywhere(two_ranks, *script)
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    whole = {**without, "moe": exactly(**{"/0": [2.0, 4.0]})}
    assert results == [without, whole, without, without, whole]
    assert calls[1:] == [NEXT] * 4
    (message,) = messages
    assert "'moe' failed on a rank" in message


def test_a_key_of_two_kinds_is_left_out_everywhere_with_one_message(two_ranks):
    first = stats(k=(ReduceType.SUM, [1.0]), x=[1.0])
    second = stats(k=(ReduceType.MAX, [1.0]), x=[1.0])
    results, _, messages = run_everywhere(two_ranks, [first] * 3, [second, second, first])
    x = summary("x", 1.0, 1.0, 1.0)
    assert results == [{"stats": x}, {"stats": x}, {"stats": {**x, **exactly(k=2.0)}}]
    assert len(messages) == 1


@pytest.mark.parametrize("field", ["sums", "maxima"])
def test_vectors_of_different_widths_fail_their_family_everywhere_with_one_message(two_ranks, field):
    def export(width):
        return {**stats(x=[1.0]), "moe": {field: {"v": [1.0] * width, "w": [1.0]}}}

    results, calls, messages = run_everywhere(
        two_ranks, [export(1), export(1), export(4), export(4)], [export(4), export(4), export(4), export(1)]
    )
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    each = 2.0 if field == "sums" else 1.0
    assert results == [without, without, {**without, "moe": exactly(v=[each] * 4, w=[each])}, without]
    assert calls == [DIFFERENT, NEXT, NEXT, NEXT]
    assert len(messages) == 1


def unreadable(group, rank, values):
    """A rank whose records cannot be packed, before and after the schema is known."""
    results = []
    with heard() as messages:
        for broken in (True, False, True, False):
            part = contents(sums={"v": [1.0, 2.0]})
            if broken and dist.get_rank(group) == rank:
                part.sums["v"] = values() if callable(values) else values
            export = reduce({"bad": part, "stats": contents(x=[1.0])}, group, "unreadable")
            results.append({name: told(records) for name, records in export.items()})
    return results, len([message for message in messages if "failed on a rank" in message])


class Faltering:
    """A vector that can be read once and never again."""

    def __init__(self):
        self._values, self.shape, self._reads = torch.tensor([1.0, 2.0]), (2,), 0

    def __len__(self):
        return 2

    def detach(self):
        self._reads += 1
        if self._reads > 1:
            raise RuntimeError("no longer there")
        return self._values


UNREADABLE = {
    "none": None,
    "matrix": torch.ones(2, 2),
    "number": torch.tensor(1.0),
    "meta": torch.ones(2, device="meta"),
}


@pytest.mark.parametrize("values", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_while_packing_on_one_rank_hangs_nobody(two_ranks, rank, values):
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    whole = {"bad": exactly(v=[2.0, 4.0]), **without}
    for results, messages in two_ranks.run(unreadable, rank, values):
        assert results == [without, whole, without, whole]
        assert messages == 1


def faltering(group, rank):
    part = contents(sums={"v": [1.0, 2.0]})
    if dist.get_rank(group) == rank:
        part.sums["v"] = Faltering()
    results = []
    for families in ({"bad": part, **stats_of_x()}, {"bad": contents(sums={"v": [1.0, 2.0]}), **stats_of_x()}):
        export = reduce(families, group, "faltering")
        results.append({name: told(records) for name, records in export.items()})
    return results


def stats_of_x():
    return {"stats": contents(x=[1.0])}


@pytest.mark.parametrize("rank", [0, 1])
def test_values_that_can_no_longer_be_read_once_the_keys_are_agreed_on(two_ranks, rank):
    without = {"stats": summary("x", 1.0, 1.0, 1.0)}
    for results in two_ranks.run(faltering, rank):
        assert results == [without, {"bad": exactly(v=[2.0, 4.0]), **without}]


def unhashable(group, rank):
    """A rank with something for a name that is no name at all."""
    part = contents(x=[1.0])
    if dist.get_rank(group) == rank:
        part.keys = ((["x"], ReduceType.AVG_MIN_MAX),)
    export = reduce({"bad": part, "good": contents(y=[1.0])}, group, "unhashable")
    return {name: told(records) for name, records in export.items()}


@pytest.mark.parametrize("rank", [0, 1])
def test_names_that_are_none(two_ranks, rank):
    assert two_ranks.run(unhashable, rank) == [{"good": summary("y", 1.0, 1.0, 1.0)}] * 2


def no_union(group, rank):
    """One rank cannot read the keys of the others, at the first export with keys that they do not share."""
    key = "first" if dist.get_rank(group) == 0 else "second"
    decode, results = Schema.decode, []
    with heard() as messages:
        for broken in (True, False, False):
            operations = Operations()
            if broken and dist.get_rank(group) == rank:
                Schema.decode = raising
            with operations.counting():
                export = reduce({"stats": contents(both=[1.0], **{key: [2.0]})}, group, "no union")
            Schema.decode = decode
            results.append(({name: told(records) for name, records in export.items()}, operations.calls))
    return results, messages


def raising(_data):
    raise MemoryError("no room for the keys")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_learn_the_keys_costs_one_export_everywhere(two_ranks, rank):
    names = [summary("both", 1.0, 1.0, 1.0), summary("first", 2.0, 2.0, 2.0), summary("second", 2.0, 2.0, 2.0)]
    whole = {"stats": names[0] | names[1] | names[2]}
    for results, messages in two_ranks.run(no_union, rank):
        assert results == [({}, DIFFERENT[:-2]), (whole, DIFFERENT), (whole, NEXT)]
        assert len([message for message in messages if "could not agree" in message]) == 1


def strayed(group, rank):
    """One rank believes that another schema was agreed on."""
    results = []
    for export in range(3):
        if export == 1 and dist.get_rank(group) == rank:
            _CHANNELS[group]["strayed"].learn(Schema(("stray",)), Schema())
        reduced = reduce({"stats": contents(x=[1.0])}, group, "strayed")
        results.append({name: told(records) for name, records in reduced.items()})
    return results, _CHANNELS[group]["strayed"].schema.families


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_whose_schemas_differ_agree_anew(two_ranks, rank):
    for results, families in two_ranks.run(strayed, rank):
        assert results == [{"stats": summary("x", 1.0, 1.0, 1.0)}] * 3
        assert families == ("stats",)


def test_without_a_group_a_failed_family_is_absent(caplog):
    broken = Records(sums={"v": torch.ones(2, 2)})
    result = reduce({"a": None, "b": broken, "stats": contents(x=[1.0])}, None, "local")
    assert list(result) == ["stats"]
    assert sorted(message.partition(" failed on a rank")[0] for message in caplog.messages)[:2] == ["'a'", "'b'"]
