"""Clipping and PPO's surrogate loss, by hand and against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.ppo_reference import surrogate

from areal_callbacks.ppo.clip import Clip, compute_surrogate_loss, find_clipped

RATIOS = (0.5, 0.8, 1.0, 1.2, 1.5, 4.0)


def make_tensors():
    """Every ratio with a positive, a negative and no advantage, float64 ``[18]`` each."""
    ratio, advantages = torch.cartesian_prod(torch.tensor(RATIOS), torch.tensor([2.0, -2.0, 0.0])).double().unbind(1)
    return ratio, advantages


@pytest.mark.parametrize(
    ("clip", "low", "high", "dual"),
    [
        (Clip(0.8, 1.2), {0.5}, {1.5, 4.0}, set()),
        (Clip(0.8, 1.2, dual=3.0), {0.5}, {1.5, 4.0}, {4.0}),
        (Clip(0.0, 5.0, dual=1.2), set(), set(), {1.5, 4.0}),
    ],
)
def test_clipped_tokens_by_hand(clip, low, high, dual):
    """Bounds themselves are not clipped; only the sign that a bound is for counts."""
    ratio = torch.tensor(RATIOS, dtype=torch.float64)
    up, down = (find_clipped(ratio, torch.full_like(ratio, advantage), clip) for advantage in (2.0, -2.0))
    assert [set(ratio[flags].tolist()) for flags in (down.low, up.high, down.dual)] == [low, high, dual]
    assert not any(flags.any() for flags in (up.low, down.high, up.dual))
    assert not any(flags.any() for flags in find_clipped(ratio, torch.zeros_like(ratio), clip))


@pytest.mark.parametrize("dual", [None, 3.0])
def test_surrogate_loss(dual):
    ratio, advantages = make_tensors()
    found = compute_surrogate_loss(ratio, advantages, Clip(0.8, 1.2, dual))
    np.testing.assert_allclose(found, surrogate(ratio.numpy(), advantages.numpy(), (0.8, 1.2), dual), rtol=1e-15)


def test_surrogate_loss_by_hand():
    one = torch.ones(4, dtype=torch.float64)
    ratio, advantages = one * 4, torch.tensor([1.0, -1.0, 0.0, -2.0], dtype=torch.float64)
    assert compute_surrogate_loss(ratio, advantages, Clip(0.8, 1.2)).tolist() == [-1.2, 4.0, 0.0, 8.0]
    assert compute_surrogate_loss(ratio, advantages, Clip(0.8, 1.2, dual=3.0)).tolist() == [-1.2, 3.0, 0.0, 6.0]
