"""The mismatch of whole sequences, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.ppo_batches import make_batch, measure
from support.ppo_reference import THRESHOLDS


def test_sequences():
    one, two = make_batch(6, 40, 3), make_batch(3, 90, 4, spread=0.05)
    one[2][4] = False  # no valid token: not a sequence
    totals, means, largest = [], [], []
    for trainer, rollout, mask in (one, two):
        for t, r, m in zip(trainer.numpy(), rollout.numpy(), mask.numpy()):
            if m.any():
                d = (t - r)[m]
                totals.append(d.sum())
                means.append(d.mean())
                largest.append(np.abs(d).max())
    assert len(totals) == 8
    expected = {"chi2_seq": np.mean(np.exp(2 * np.array(totals))) - 1}
    expected["log1p_chi2_seq"] = math.log1p(expected["chi2_seq"])
    for name, values in (("sum", totals), ("mean", means)):
        for statistic, reduce in (("avg", np.mean), ("min", np.min), ("max", np.max)):
            expected[f"sequence_logp_diff_{name}/{statistic}"] = reduce(values)
    for threshold in THRESHOLDS:
        expected[f"sequence_ratio_outside_{threshold}"] = np.mean(np.array(largest) > np.log(threshold))
    metrics = measure(one, two)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)


def test_one_dimension_has_no_sequences():
    trainer, rollout, mask = make_batch(1, 50, 10)
    metrics = measure((trainer[0], rollout[0], mask[0]))
    assert not [name for name in metrics if "seq" in name]
