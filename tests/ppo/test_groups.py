"""The mismatch by age and by the sign of the advantage, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.ppo_batches import SCOPE, make_batch, measure
from support.ppo_reference import below

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.train_infer import log_train_inference_stats


def test_by_age_and_by_advantage():
    one, two = make_batch(5, 60, 5), make_batch(2, 30, 6)
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
    trainer, rollout, mask = make_batch(2, 10, 7)
    ones = torch.ones_like(trainer)
    metrics = measure((trainer, rollout, mask), versions=ones.long(), current_version=2, advantages=ones)
    assert {name for name in metrics if name.startswith("by_")} == {
        f"{group}/{metric}" for group in ("by_age/1", "by_advantage/positive") for metric in ("logp_abs_diff", "kl_k3")
    }
