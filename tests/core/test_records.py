"""Bundles of numbers, merged over time."""

from __future__ import annotations

import logging

import pytest
import torch

from areal_callbacks.core.records import Records, output_names, pool
from areal_callbacks.core.types import ReduceType

KINDS = list(ReduceType)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 4)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def records(*keys, **vectors):
    return Records(tuple(keys), rows(*([6.0, 3.0, 1.0, 4.0] for _ in keys)), **vectors)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ReduceType.AVG_MIN_MAX, ["k/avg", "k/min", "k/max"]),
        (ReduceType.AVG, ["k"]),
        (ReduceType.SUM, ["k"]),
        (ReduceType.MIN, ["k"]),
        (ReduceType.MAX, ["k"]),
        (ReduceType.SCALAR, ["k", "k__count"]),
        (ReduceType.DENOMINATOR, ["k"]),
    ],
)
def test_exported_names_of_every_kind(kind, names):
    assert output_names("k", kind) == names
    assert list(records(("k", kind)).metrics()) == names


def test_over_time_everything_adds_and_the_originals_stay():
    first = Records((("x", ReduceType.SUM),), rows([1, 2, 3, 4]), {"tokens": vector(1, 2)}, {"seconds": vector(3, 1)})
    second = Records(
        (("y", ReduceType.SUM),), rows([5, 6, 7, 8]), {"tokens": vector(10, 20)}, {"seconds": vector(2, 5)}
    )
    merged = first.merge(second)
    assert merged.keys == (("x", ReduceType.SUM), ("y", ReduceType.SUM))
    assert merged.rows.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert merged.sums["tokens"].tolist() == [11, 22]
    assert merged.maxima["seconds"].tolist() == [5, 6]
    assert first.sums["tokens"].tolist() == [1, 2]
    assert second.rows.tolist() == [[5, 6, 7, 8]]


def test_equal_keys_of_one_kind_are_pooled():
    pooled = pool([records(("x", ReduceType.AVG_MIN_MAX)), Records(), records(("x", ReduceType.AVG_MIN_MAX))])
    assert pooled.metrics() == {"x/avg": 2.0, "x/min": 1.0, "x/max": 4.0}
    assert pooled.rows.tolist() == [[12.0, 6.0, 1.0, 4.0]]


def test_a_vector_of_another_width_is_an_error_and_not_a_broadcast():
    for field in ("sums", "maxima"):
        one, five = Records(**{field: {"v": torch.ones(1)}}), Records(**{field: {"v": torch.ones(5)}})
        with pytest.raises(ValueError, match="'v' has 1 values and 5"):
            one.merge(five)


def clashes(caplog, *keys):
    with caplog.at_level(logging.WARNING, logger="areal_callbacks"):
        exported = records(*keys, ("other", ReduceType.SUM)).metrics()
        records(*keys, ("other", ReduceType.SUM)).metrics()
    assert exported == {"other": 6.0}
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_key_of_two_kinds_is_left_out_with_one_message(caplog, first, second):
    if first is not second:
        (message,) = clashes(caplog, ("k", first), ("k", second))
        assert first.name in message
        assert second.name in message


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (("a", ReduceType.AVG_MIN_MAX), ("a/avg", ReduceType.SCALAR), "a/avg"),
        (("a", ReduceType.AVG_MIN_MAX), ("a/max", ReduceType.DENOMINATOR), "a/max"),
        (("a", ReduceType.SCALAR), ("a__count", ReduceType.SUM), "a__count"),
    ],
)
def test_two_keys_that_export_one_name_are_left_out_with_one_message(caplog, first, second, name):
    (message,) = clashes(caplog, first, second)
    assert message.startswith(repr(name))


def test_a_conflict_ends_with_its_cause(caplog):
    clashes(caplog, ("k", ReduceType.SUM), ("k", ReduceType.AVG))
    assert records(("k", ReduceType.SUM)).metrics() == {"k": 6.0}


def test_a_portable_copy_holds_no_more_than_its_numbers():
    big = torch.zeros(1000, 1000, dtype=torch.float64)
    portable = Records(sums={"row": big[3, :4]}, maxima={"count": torch.tensor([2**53 - 1])}).portable()
    assert portable.sums["row"].untyped_storage().nbytes() == 4 * 8
    assert portable.maxima["count"].tolist() == [2.0**53 - 1]


@pytest.mark.parametrize(
    "broken",
    [
        Records((("x", ReduceType.SUM),), torch.zeros(2, 4)),
        Records((("x", ReduceType.SUM),), torch.zeros(1, 3)),
        Records(sums={"v": torch.zeros(2, 2)}),
    ],
)
def test_ill_formed_records_are_not_portable(broken):
    with pytest.raises(ValueError, match="expected a tensor of shape"):
        broken.portable()
