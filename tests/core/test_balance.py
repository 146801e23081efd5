"""The balance of one layer against NumPy in float64."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.core.balance import count_starved, load_percentages, max_over_ideal, quantile

COUNTS = st.lists(st.integers(0, 2**40), max_size=16)


@given(COUNTS)
def test_counts_of_any_layer(counts: list[int]) -> None:
    exact = np.array(counts, dtype=np.float64)
    if exact.sum() == 0:
        assert (max_over_ideal(counts), load_percentages(counts)) == (0.0, [0.0] * len(counts))
        assert count_starved(counts) == 0
        return
    assert max_over_ideal(counts) == pytest.approx(exact.max() / exact.mean())
    assert load_percentages(counts) == pytest.approx(list(100 * exact / exact.sum()))
    assert sum(load_percentages(counts)) == pytest.approx(100)


def test_one_busy_expert_and_perfect_balance() -> None:
    assert max_over_ideal(array("Q", [0, 0, 0, 7])) == 4.0
    assert max_over_ideal([5, 5, 5, 5]) == 1.0
    assert load_percentages([1, 3]) == [25.0, 75.0]


@pytest.mark.parametrize(
    ("counts", "starved"), [([100, 9, 0, 291], 2), ([100, 10, 10, 280], 0), ([0, 0, 8], 2), ([1, 1], 0), ([], 0)]
)
def test_starved_experts_have_less_than_a_tenth_of_the_ideal_load(counts: list[int], starved: int) -> None:
    assert count_starved(counts) == starved
    ideal = np.mean(counts) if counts else 0.0
    assert starved == sum(count < ideal / 10 for count in counts)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-6)
