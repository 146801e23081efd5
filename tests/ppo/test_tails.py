"""Tails of the importance ratio, against NumPy and at their thresholds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.ppo_batches import differences, make_batch, measure
from support.ppo_reference import THRESHOLDS


def test_signed_tails():
    one, two = make_batch(5, 300, 0, spread=1.0), make_batch(2, 70, 1, spread=1.0)
    d = differences(one, two)
    expected = {}
    for threshold in THRESHOLDS:
        expected[f"ratio_outside_{threshold}"] = np.mean(np.maximum(np.exp(d), np.exp(-d)) > threshold)
        expected[f"ratio_above_{threshold}"] = np.mean(d > np.log(threshold))
        expected[f"ratio_below_{threshold}"] = np.mean(d < -np.log(threshold))
    metrics = measure(one, two)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)
    assert all(expected.values())


def test_tails_are_strict():
    at_threshold = torch.log(torch.tensor(2.0, dtype=torch.float64))
    metrics = measure((at_threshold.repeat(2), torch.zeros(2, dtype=torch.float64), [True, True]))
    assert metrics["ratio_outside_1.5"] == 1.0
    assert metrics["ratio_outside_2"] == 0.0
    assert metrics["ratio_above_2"] == metrics["ratio_below_2"] == 0.0
