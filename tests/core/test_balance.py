"""The balance of one layer against NumPy in float64."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.core.balance import load_percentages, max_over_ideal

COUNTS = st.lists(st.integers(0, 2**40), max_size=16)


@given(COUNTS)
def test_counts_of_any_layer(counts: list[int]) -> None:
    exact = np.array(counts, dtype=np.float64)
    if exact.sum() == 0:
        assert (max_over_ideal(counts), load_percentages(counts)) == (0.0, [0.0] * len(counts))
        return
    assert max_over_ideal(counts) == pytest.approx(exact.max() / exact.mean())
    assert load_percentages(counts) == pytest.approx(list(100 * exact / exact.sum()))
    assert sum(load_percentages(counts)) == pytest.approx(100)


def test_one_busy_expert_and_perfect_balance() -> None:
    assert max_over_ideal(array("Q", [0, 0, 0, 7])) == 4.0
    assert max_over_ideal([5, 5, 5, 5]) == 1.0
    assert load_percentages([1, 3]) == [25.0, 75.0]
