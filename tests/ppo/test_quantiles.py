"""Quantiles from logarithmic bins, against NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ppo_batches import differences, make_batch, measure

from areal_callbacks.ppo.quantiles import BINS, QUANTILES, RELATIVE_ERROR, count_by_magnitude, quantiles

magnitudes = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-9, 6e4), st.floats(1e-3, 1.0)).map(abs), min_size=1, max_size=60
)


@given(values=magnitudes)
@settings(max_examples=150, deadline=None)
def test_quantiles_are_within_the_documented_error(values):
    numbers = torch.tensor(values, dtype=torch.float64)
    found = quantiles.derive(count_by_magnitude(numbers, None).tolist())
    for name, fraction in QUANTILES.items():
        exact = np.quantile(np.array(values), fraction, method="inverted_cdf")
        assert abs(found[name] - exact) <= RELATIVE_ERROR * exact + 2.0**-32


def test_quantile_bins_ignore_what_is_masked_and_clamp_what_is_outside():
    values = torch.tensor([math.nan, 1e-300, 2.0**-32, 1.0, 1e9, math.inf], dtype=torch.float64)
    counts = count_by_magnitude(values, torch.tensor([False, True, True, True, True, False]))
    assert counts.sum() == 4
    assert counts.shape == (BINS,)
    assert [counts[0], counts[1], counts[1 + 16 * 32], counts[-1]] == [1, 1, 1, 1]


def test_quantiles_merge_over_batches():
    batches = [make_batch(4, 500, seed, spread) for seed, spread in enumerate((0.01, 0.1, 2.0))]
    d = np.abs(differences(*batches))
    metrics = measure(*batches)
    for name, fraction in QUANTILES.items():
        exact = np.quantile(d, fraction, method="inverted_cdf")
        assert metrics[f"logp_abs_diff/{name}"] == pytest.approx(exact, rel=RELATIVE_ERROR)
