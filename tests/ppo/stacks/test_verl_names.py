"""The table of docs/ppo.md that says how verl's metrics map, against verl's definitions in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.ppo_batches import make_batch
from support.ppo_reference import below

from areal_callbacks import Clip, PolicyBatch, PolicyDiagnostics, PolicyUpdate
from areal_callbacks.core.tracker import StatsTracker

PAGE = (Path(__file__).parents[3] / "docs" / "ppo.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.partition("### verl's metrics")[2].partition("\n## ")[0].splitlines() if "|" in line]


@pytest.fixture(scope="module")
def measured():
    """verl's numbers by their definitions, and ours; log ratios are small, so that no limit of verl's is reached."""
    old, rollout, mask = make_batch(5, 40, seed=11)
    new = old + 0.2 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    advantages = torch.randn(old.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    diagnostics = PolicyDiagnostics(StatsTracker())
    diagnostics.observe_rollout_batch(PolicyBatch(mask, trainer_logp=old, rollout_logp=rollout, advantages=advantages))
    diagnostics.observe_update(PolicyUpdate(mask, new, old, advantages=advantages, clip=Clip(0.8, 1.28)))
    ours = below("ppo_actor/", diagnostics.tracker.export())
    d, change = ((one - other).numpy() for one, other in ((old, rollout), (new, old)))
    valid, sign, ratio = mask.numpy(), advantages.numpy(), np.exp(change)
    weights, means = np.exp(d[valid]), np.array([row[use].mean() for row, use in zip(d, valid)])
    sums = np.array([row[use].sum() for row, use in zip(d, valid)])
    clipped = -sign * np.clip(ratio, 0.8, 1.28) > -sign * ratio
    verl = {
        "rollout_corr/kl": -d[valid].mean(),
        "rollout_corr/k3_kl": (np.exp(d) - d - 1)[valid].mean(),
        "rollout_corr/chi2_token": (weights**2).mean() - 1,
        "rollout_corr/chi2_seq": np.exp(2 * sums).mean() - 1,
        "rollout_corr/log_ppl_diff": (-means).mean(),
        "rollout_corr/log_ppl_diff_max": (-means).max(),
        "rollout_corr/rollout_is_mean": weights.mean(),
        "rollout_corr/rollout_is_eff_sample_size": 1 / ((weights / weights.mean()) ** 2).mean(),
        "actor/ppo_kl": -change[valid].mean(),
        "actor/pg_clipfrac": clipped[valid].mean(),
    }
    return verl, ours


@pytest.mark.parametrize(
    ("name", "sign", "ours"),
    [
        ("rollout_corr/kl", 1, "train_infer/kl_k1"),
        ("rollout_corr/k3_kl", 1, "train_infer/kl_k3"),
        ("rollout_corr/chi2_token", 1, "train_infer/chi2"),
        ("rollout_corr/chi2_seq", 1, "train_infer/chi2_seq"),
        ("rollout_corr/log_ppl_diff", -1, "train_infer/sequence_logp_diff_mean/avg"),
        ("rollout_corr/log_ppl_diff_max", -1, "train_infer/sequence_logp_diff_mean/min"),
        ("rollout_corr/rollout_is_mean", 1, "train_infer/ratio_mean"),
        ("rollout_corr/rollout_is_eff_sample_size", 1, "train_infer/ess_fraction"),
        ("actor/ppo_kl", -1, "update/approx_kl/avg"),
        ("actor/pg_clipfrac", 1, "update/clip_ratio/avg"),
    ],
)
def test_a_metric_of_verl_is_the_one_that_the_page_names(name, sign, ours, measured):
    verl, found = measured
    assert sign * found[ours] == pytest.approx(verl[name], rel=1e-9)
    (row,) = [row for row in ROWS if f"`{name}`" in row]
    assert f"`{ours}`" in row
    assert ("minus" in row) == (sign < 0)
