"""The extensions of the train/rollout metrics, against NumPy on the same numbers."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ppo_reference import THRESHOLDS, below

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.quantiles import BINS, QUANTILES, RELATIVE_ERROR, log_bins, quantiles
from areal_callbacks.ppo.ratios import sequence_chi2, squared_ratio_sums
from areal_callbacks.ppo.train_infer import log_train_inference_stats

SCOPE = "ppo_actor/train_infer/"


def measured(*batches, **options):
    tracker = StatsTracker()
    for trainer, rollout, mask in batches:
        log_train_inference_stats(trainer, rollout, mask, tracker, **options)
    return below(SCOPE, tracker.export())


def batch(rows, width, seed, spread=0.3, fill=0.7):
    generator = torch.Generator().manual_seed(seed)
    trainer = -3 * torch.rand(rows, width, generator=generator).double()
    rollout = trainer - spread * torch.randn(rows, width, generator=generator).double()
    return trainer, rollout, torch.rand(rows, width, generator=generator) < fill


def differences(*batches):
    return np.concatenate([(trainer - rollout)[mask].numpy() for trainer, rollout, mask in batches])


def test_signed_tails_ratios_and_matches():
    one, two = batch(5, 300, 0, spread=1.0), batch(2, 70, 1, spread=1.0)
    one[1][0, :150] = one[0][0, :150]
    one[0][1, :10] = 0.25
    d = differences(one, two)
    ratio = np.exp(d)
    logp = np.concatenate([np.maximum(t.numpy(), r.numpy())[m.numpy()] for t, r, m in (one, two)])
    expected = {
        "exact_match_fraction": np.mean(d == 0),
        "positive_logp_fraction": np.mean(logp > 0),
        "ratio_mean": ratio.mean(),
        "ratio_mean_standard_error": ratio.std() / math.sqrt(len(d)),
        "chi2": (ratio**2).mean() - 1,
        "ess_fraction": ratio.sum() ** 2 / (len(d) * (ratio**2).sum()),
    }
    for threshold in THRESHOLDS:
        expected[f"ratio_above_{threshold}"] = np.mean(d > np.log(threshold))
        expected[f"ratio_below_{threshold}"] = np.mean(d < -np.log(threshold))
    metrics = measured(one, two)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)


def test_small_mismatch_keeps_its_digits():
    """E[exp 2d] - 1 of d around 1e-9 is lost in 1 + d if the ratios themselves are added."""
    d = torch.tensor([1e-9, 3e-9], dtype=torch.float64)
    metrics = measured((d, torch.zeros_like(d), torch.ones(2, dtype=torch.bool)))
    assert metrics["chi2"] == pytest.approx(4e-9, rel=1e-7)
    assert metrics["ratio_mean_standard_error"] == pytest.approx(1e-9 / math.sqrt(2), rel=1e-6)


def test_ratios_that_no_float_holds():
    d = torch.tensor([400.0, 0.0], dtype=torch.float64)
    metrics = measured((d, torch.zeros_like(d), torch.ones(2, dtype=torch.bool)))
    assert metrics["chi2"] == math.inf
    assert metrics["ratio_mean"] == pytest.approx(math.exp(400) / 2)


magnitudes = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-9, 6e4), st.floats(1e-3, 1.0)).map(abs), min_size=1, max_size=60
)


@given(values=magnitudes)
@settings(max_examples=150, deadline=None)
def test_quantiles_are_within_the_documented_error(values):
    numbers = torch.tensor(values, dtype=torch.float64)
    found = quantiles.derive(log_bins(numbers, None).tolist())
    for name, fraction in QUANTILES.items():
        exact = np.quantile(np.array(values), fraction, method="inverted_cdf")
        assert abs(found[name] - exact) <= RELATIVE_ERROR * exact + 2.0**-32


def test_quantile_bins_ignore_what_is_masked_and_clamp_what_is_outside():
    values = torch.tensor([math.nan, 1e-300, 2.0**-32, 1.0, 1e9, math.inf], dtype=torch.float64)
    counts = log_bins(values, torch.tensor([False, True, True, True, True, False]))
    assert counts.sum() == 4
    assert counts.shape == (BINS,)
    assert [counts[0], counts[1], counts[1 + 16 * 32], counts[-1]] == [1, 1, 1, 1]


def test_quantiles_merge_over_batches():
    batches = [batch(4, 500, seed, spread) for seed, spread in enumerate((0.01, 0.1, 2.0))]
    d = np.abs(differences(*batches))
    metrics = measured(*batches)
    for name, fraction in QUANTILES.items():
        exact = np.quantile(d, fraction, method="inverted_cdf")
        assert metrics[f"logp_abs_diff/{name}"] == pytest.approx(exact, rel=RELATIVE_ERROR)


def test_sequences():
    one, two = batch(6, 40, 3), batch(3, 90, 4, spread=0.05)
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
    metrics = measured(one, two)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("size", [1e-6, 1.0, 250.0, 4000.0])
def test_sequence_ratios_in_log_space(size):
    totals = torch.tensor([size, -size, size / 2, 3.0], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    found = sequence_chi2.derive((squared_ratio_sums(totals, mask) + squared_ratio_sums(-totals, mask)).tolist())
    exponents = 2 * np.concatenate((totals[:3].numpy(), -totals[:3].numpy()))
    expected = np.logaddexp.reduce(exponents) - math.log(6)
    assert found["log1p_chi2_seq"] == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert found["chi2_seq"] == pytest.approx(math.expm1(expected) if expected < 709 else math.inf, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("total", "chi2"), [(7000.0, math.inf), (math.inf, math.inf), (-7000.0, -1.0)])
def test_sequence_ratios_beyond_the_buckets(total, chi2):
    totals = torch.tensor([total], dtype=torch.float64)
    assert sequence_chi2.derive(squared_ratio_sums(totals, totals != 0).tolist())["chi2_seq"] == chi2


def test_by_age_and_by_advantage():
    one, two = batch(5, 60, 5), batch(2, 30, 6)
    expected, tracker = {}, StatsTracker()
    groups = {}
    for seed, (trainer, rollout, mask) in enumerate((one, two)):
        generator = torch.Generator().manual_seed(seed)
        versions = torch.randint(-1, 8, mask.shape, generator=generator)
        advantages = torch.randint(-1, 2, mask.shape, generator=generator).float()
        log_train_inference_stats(
            trainer, rollout, mask, tracker, versions=versions, current_version=6, advantages=advantages
        )
        for t, r, version, advantage in zip(trainer[mask], rollout[mask], versions[mask], advantages[mask]):
            sign = {-1: "negative", 0: "zero", 1: "positive"}[int(advantage)]
            groups.setdefault(f"by_advantage/{sign}", []).append(float(t - r))
            if 0 <= version <= 6:
                age = min(6 - int(version), 3)
                groups.setdefault(f"by_age/{'3_plus' if age == 3 else age}", []).append(float(t - r))
    for name, values in groups.items():
        d = np.array(values)
        expected[f"{name}/logp_abs_diff"] = np.abs(d).mean()
        expected[f"{name}/kl_k3"] = (np.expm1(d) - d).mean()
    assert len(expected) == 14
    metrics = below(SCOPE, tracker.export())
    found = {name: value for name, value in metrics.items() if name.startswith("by_")}
    assert found == pytest.approx(expected, rel=1e-10)


def test_a_group_without_tokens_is_absent():
    trainer, rollout, mask = batch(2, 10, 7)
    ones = torch.ones_like(trainer)
    metrics = measured((trainer, rollout, mask), versions=ones.long(), current_version=2, advantages=ones)
    assert {name for name in metrics if name.startswith("by_")} == {
        f"{group}/{metric}" for group in ("by_age/1", "by_advantage/positive") for metric in ("logp_abs_diff", "kl_k3")
    }


def test_switched_off_only_the_specified_metrics_remain():
    assert set(measured(batch(2, 10, 8), extended=False)) == {
        *(f"logp_{kind}/{statistic}" for kind in ("diff", "abs_diff") for statistic in ("avg", "min", "max")),
        *(f"ratio_outside_{threshold}" for threshold in (1.5, 2, 3, 5, 10)),
        *("logp_diff_squared", "trainer_nll", "rollout_nll", "kl_k1", "kl_k2", "kl_k3"),
        *("nonfinite_logp_fraction", "kl_k3_overflow_fraction", "n_valid_tokens"),
    }


def test_the_documented_table_is_what_is_exported():
    trainer, rollout, mask = batch(9, 200, 9)
    steps = torch.arange(200).expand(9, 200)
    metrics = measured((trainer, rollout, mask), versions=steps % 4, current_version=3, advantages=steps % 3 - 1.0)
    documented = set()
    for line in log_train_inference_stats.__doc__.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == 3 and not cells[0].startswith(("=", "Key")):
            for key in cells[0].split(", "):
                documented |= expanded(key.strip())
    assert documented == set(metrics)


def expanded(key):
    key = key.replace("{t}", "{1.5,2,3,5,10}").replace("{…}", "{logp_abs_diff,kl_k3}")
    match = re.search(r"\{([^}]*)\}", key)
    if match is None:
        return {key}
    return {
        name for choice in match[1].split(",") for name in expanded(key[: match.start()] + choice + key[match.end() :])
    }


def test_one_dimension_has_no_sequences():
    trainer, rollout, mask = batch(1, 50, 10)
    metrics = measured((trainer[0], rollout[0], mask[0]))
    assert not [name for name in metrics if "seq" in name]
