"""Moments of importance ratios, of tokens and of sequences, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.ppo_batches import differences, make_batch, measure

from areal_callbacks.ppo.ratios import BUCKETS, sequence_chi2, sum_squared_ratios, token_ratios


def test_ratio_moments():
    one, two = make_batch(5, 300, 0, spread=1.0), make_batch(2, 70, 1, spread=1.0)
    ratio = np.exp(differences(one, two))
    expected = {
        "ratio_mean": ratio.mean(),
        "ratio_mean_standard_error": ratio.std() / math.sqrt(len(ratio)),
        "chi2": (ratio**2).mean() - 1,
        "ess_fraction": ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()),
    }
    metrics = measure(one, two)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)


def test_small_mismatch_keeps_its_digits():
    """E[exp 2d] - 1 of d around 1e-9 is lost in 1 + d if the ratios themselves are added."""
    d = torch.tensor([1e-9, 3e-9], dtype=torch.float64)
    metrics = measure((d, torch.zeros_like(d), torch.ones(2, dtype=torch.bool)))
    assert metrics["chi2"] == pytest.approx(4e-9, rel=1e-7)
    assert metrics["ratio_mean_standard_error"] == pytest.approx(1e-9 / math.sqrt(2), rel=1e-6)


def test_ratios_that_no_float_holds():
    d = torch.tensor([400.0, 0.0], dtype=torch.float64)
    metrics = measure((d, torch.zeros_like(d), torch.ones(2, dtype=torch.bool)))
    assert metrics["chi2"] == math.inf
    assert metrics["ratio_mean"] == pytest.approx(math.exp(400) / 2)


@pytest.mark.parametrize("size", [1e-6, 1.0, 250.0, 4000.0])
def test_sequence_ratios_in_log_space(size):
    totals = torch.tensor([size, -size, size / 2, 3.0], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    found = sequence_chi2.derive((sum_squared_ratios(totals, mask) + sum_squared_ratios(-totals, mask)).tolist())
    exponents = 2 * np.concatenate((totals[:3].numpy(), -totals[:3].numpy()))
    expected = np.logaddexp.reduce(exponents) - math.log(6)
    assert found["log1p_chi2_seq"] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert found["chi2_seq"] == pytest.approx(math.expm1(expected) if expected < 709 else math.inf, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("total", "chi2"), [(7000.0, math.inf), (math.inf, math.inf), (-7000.0, -1.0), (math.nan, math.nan)]
)
def test_sequence_ratios_beyond_the_buckets(total, chi2):
    totals = torch.tensor([total], dtype=torch.float64)
    found = sequence_chi2.derive(sum_squared_ratios(totals, torch.ones(1, dtype=torch.bool)).tolist())
    assert found["chi2_seq"] == pytest.approx(chi2, nan_ok=True)
    assert found["log1p_chi2_seq"] == pytest.approx(-math.inf if chi2 == -1 else chi2, nan_ok=True)


def test_no_tokens_and_no_sequences_give_no_metrics():
    assert token_ratios.derive([0.0] * 3) == sequence_chi2.derive([0.0] * (1 + BUCKETS)) == {}
