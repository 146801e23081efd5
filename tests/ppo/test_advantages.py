"""Signs of the advantages, against hand computation."""

from __future__ import annotations

import math

import pytest
import torch

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.advantages import log_advantage_stats


def test_hand_computed_advantages():
    tracker = StatsTracker()
    log_advantage_stats(torch.tensor([[2.0, -1.0, 7.0]]), torch.tensor([[1, 1, 0]]), tracker)
    assert tracker.export() == {
        "ppo_actor/advantage_positive_fraction": 0.5,
        "ppo_actor/advantage_negative_fraction": 0.5,
        "ppo_actor/advantage_zero_fraction": 0.0,
    }


def test_advantages_pool_tokens_and_show_nan():
    tracker = StatsTracker()
    log_advantage_stats(torch.tensor([1.0, 0.0, math.nan]), torch.tensor([True, True, False]), tracker)
    log_advantage_stats(torch.tensor([0.0, -0.0]), torch.ones(2, dtype=torch.bool), tracker)
    assert tracker.export()["ppo_actor/advantage_zero_fraction"] == 0.75
    log_advantage_stats(torch.tensor([math.nan, 1.0]), torch.ones(2, dtype=torch.bool), tracker)
    assert all(math.isnan(value) for value in tracker.export().values())


def test_advantages_of_another_shape_raise():
    with pytest.raises(ValueError, match=r"advantages has shape \[2, 1\], its mask \[2, 3\]"):
        log_advantage_stats(torch.zeros(2, 1), torch.ones(2, 3), StatsTracker())
