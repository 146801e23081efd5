"""Rows (sum, count, minimum, maximum) against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_callbacks.core.summary import empty_rows, merge_rows_, summarise, summarise_number
from areal_callbacks.core.types import ReduceType

quietly = settings(deadline=None)
numbers = st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=8)


def reference(values):
    """The row of some numbers; NumPy's minimum and maximum carry NaN as ours must."""
    array = np.array(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return [array.sum(), array.size, np.min(array, initial=math.inf), np.max(array, initial=-math.inf)]


def row(values, kind=ReduceType.AVG_MIN_MAX):
    tensor = torch.tensor(values, dtype=torch.float64)
    return summarise(tensor, torch.ones_like(tensor, dtype=torch.bool), kind)


@quietly
@given(numbers)
def test_a_row_says_what_numpy_says(values):
    np.testing.assert_allclose(row(values).numpy(), reference(values), rtol=1e-12, atol=1e-9)


@quietly
@given(numbers, numbers)
def test_merging_two_rows_is_the_row_of_both_in_either_order(first, second):
    for left, right in ((first, second), (second, first)):
        merged = row(left)
        merge_rows_(merged, row(right))
        np.testing.assert_allclose(merged.numpy(), reference(left + right), rtol=1e-12, atol=1e-9)


@quietly
@given(numbers, st.data())
def test_only_the_masked_elements_count(values, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    tensor = torch.tensor(values, dtype=torch.float64)
    result = summarise(tensor, torch.tensor(mask, dtype=torch.bool), ReduceType.AVG_MIN_MAX)
    chosen = [value for value, here in zip(values, mask) if here]
    np.testing.assert_allclose(result.numpy(), reference(chosen), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ReduceType.AVG, [3.0, 2.0, math.inf, -math.inf]),
        (ReduceType.SUM, [3.0, 2.0, math.inf, -math.inf]),
        (ReduceType.MIN, [3.0, 2.0, 1.0, -math.inf]),
        (ReduceType.MAX, [3.0, 2.0, math.inf, 2.0]),
        (ReduceType.AVG_MIN_MAX, [3.0, 2.0, 1.0, 2.0]),
        (ReduceType.DENOMINATOR, [0.0, 2.0, math.inf, -math.inf]),
    ],
)
def test_columns_that_nobody_reads_stay_neutral(kind, expected):
    assert row([1.0, 2.0], kind).tolist() == expected


def test_the_row_of_a_number_and_of_nothing():
    assert summarise_number(torch.tensor([[16777217]])).tolist() == [16777217.0, 1.0, math.inf, -math.inf]
    assert empty_rows(2).tolist() == [[0.0, 0.0, math.inf, -math.inf]] * 2
