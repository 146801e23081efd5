"""The specified token metrics of the mismatch, against hand computation and NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.ppo_batches import SCOPE, differences, make_batch, measure
from support.ppo_reference import below, scales, specified

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.train_infer import log_train_inference_stats

LN2, LN8 = math.log(2), math.log(8)


def test_hand_computed_example():
    trainer = torch.tensor([-LN2, -LN8, -LN2, -LN2], dtype=torch.float64)
    rollout = torch.tensor([-LN8, -LN2, -LN2, -LN2], dtype=torch.float64)
    expected = {
        "logp_diff/avg": 0.0,
        "logp_diff/min": -1.386294,
        "logp_diff/max": 1.386294,
        "logp_abs_diff/avg": 0.693147,
        "logp_diff_squared": 0.960906,
        "kl_k1": 0.0,
        "kl_k2": 0.480453,
        "kl_k3": 0.5625,
        "ratio_outside_1.5": 0.5,
        "ratio_outside_2": 0.5,
        "ratio_outside_3": 0.5,
        "ratio_outside_5": 0.0,
        "ratio_outside_10": 0.0,
        "trainer_nll": 1.039721,
        "rollout_nll": 1.039721,
        "ratio_mean": 1.5625,
        "ratio_mean_standard_error": 0.720107,
        "chi2": 3.515625,
        "ess_fraction": 0.540657,
        "n_valid_tokens": 4.0,
    }
    metrics = measure((trainer, rollout, torch.ones(4, dtype=torch.bool)))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("spread", [1e-4, 0.05, 3.0])
def test_matches_numpy_in_float64(dtype, spread):
    generator = torch.Generator().manual_seed(1)
    trainer = (-3 * torch.rand(7, 501, generator=generator)).to(dtype)
    rollout = (trainer.double() + spread * torch.randn(7, 501, generator=generator).double()).to(dtype)
    mask = torch.rand(7, 501, generator=generator) < 0.6
    metrics = measure((trainer, rollout, mask))
    arguments = trainer.double().numpy(), rollout.double().numpy(), mask.numpy()
    scale = scales(*arguments)
    for name, expected in specified(*arguments).items():
        assert abs(metrics[name] - expected) <= 1e-12 * scale.get(name, 1.0), name


@pytest.mark.parametrize("tokens", [1, 65_535, 65_536, 65_537, 200_003])
def test_pieces_of_any_size_and_batches_are_one_population(tokens):
    generator = torch.Generator().manual_seed(tokens)
    trainer = -3 * torch.rand(tokens, generator=generator)
    rollout = trainer + 0.3 * torch.randn(tokens, generator=generator)
    mask = torch.rand(tokens, generator=generator) < 0.7
    mask[0] = True
    tracker = StatsTracker()
    for part in zip(*(tensor.split((tokens + 2) // 3) for tensor in (trainer, rollout, mask))):
        log_train_inference_stats(*part, tracker)
    expected = specified(trainer.numpy(), rollout.numpy(), mask.numpy())
    whole, parts = measure((trainer, rollout, mask)), below(SCOPE, tracker.export())
    for name, value in expected.items():
        assert whole[name] == pytest.approx(value, rel=1e-11, abs=1e-14), name
        assert parts[name] == pytest.approx(value, rel=1e-11, abs=1e-14), name
    assert parts.keys() == whole.keys()
    assert parts["logp_abs_diff/p99"] == whole["logp_abs_diff/p99"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_masked_padding_changes_nothing(value):
    trainer, rollout = torch.randn(3, 40) - 3, torch.randn(3, 40) - 3
    mask = torch.zeros(3, 40, dtype=torch.bool)
    mask[:, :25] = True
    clean = measure((trainer[:, :25], rollout[:, :25], mask[:, :25]))
    trainer[:, 25:] = value
    rollout[:, 30:] = -value
    assert measure((trainer, rollout, mask)) == pytest.approx(clean, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("trainer", "rollout"), [(-math.inf, -1.0), (-1.0, -math.inf), (math.inf, math.inf)])
def test_infinite_logps_are_not_finite(trainer, rollout):
    metrics = measure(([-1.0, trainer, -1.0, -2.0], [-1.0, rollout, -1.0, -2.0], [True, True, True, False]))
    expected = specified([-1.0, trainer, -1.0, -2.0], [-1.0, rollout, -1.0, -2.0], [True, True, True, False])
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, nan_ok=True)
    assert metrics["nonfinite_logp_fraction"] == pytest.approx(1 / 3)


def test_overflow_counts_finite_inputs_only():
    trainer = torch.tensor([0.0, 0.0, 0.0, math.inf, 1e308], dtype=torch.float64)
    rollout = torch.tensor([-709.0, -709.79, -1e6, -1.0, -1e308], dtype=torch.float64)
    metrics = measure((trainer, rollout, torch.ones(5, dtype=torch.bool)))
    assert metrics["kl_k3_overflow_fraction"] == pytest.approx(0.6)
    assert metrics["nonfinite_logp_fraction"] == pytest.approx(0.2)
    assert measure((trainer[:2], rollout[:2], [True, True]))["kl_k3"] == math.inf


def test_matches_and_positive_log_probabilities():
    one, two = make_batch(5, 300, 0, spread=1.0), make_batch(2, 70, 1, spread=1.0)
    one[1][0, :150] = one[0][0, :150]
    one[0][1, :10] = 0.25
    logp = np.concatenate([np.maximum(t.numpy(), r.numpy())[m.numpy()] for t, r, m in (one, two)])
    metrics = measure(one, two)
    assert metrics["exact_match_fraction"] == pytest.approx(np.mean(differences(one, two) == 0), rel=1e-12)
    assert metrics["positive_logp_fraction"] == pytest.approx(np.mean(logp > 0), rel=1e-12)


def test_k3_is_precise_for_small_gaps():
    metrics = measure((torch.tensor([1e-4], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64), [True]))
    assert metrics["kl_k3"] == pytest.approx(1e-8 / 2 + 1e-12 / 6, rel=1e-7)


def test_numpy_reference_is_the_hand_computed_example():
    values = specified([-LN2, -LN8, -LN2, -LN2], [-LN8, -LN2, -LN2, -LN2], np.ones(4))
    assert values["kl_k3"] == pytest.approx(0.5625)
    assert values["ratio_outside_3"] == 0.5
