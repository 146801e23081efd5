"""Several reward functions as one reward."""

from __future__ import annotations

import math

import torch

from areal_callbacks.ppo.rewards import combine_rewards


def test_reward_functions_combine_without_those_that_gave_none():
    rewards, scored = combine_rewards(
        torch.tensor([[1.0, 2.0], [math.nan, 4.0], [math.nan] * 2]), torch.tensor([1.0, 0.5])
    )
    assert rewards.tolist() == [2.0, 2.0, 0.0]
    assert scored.tolist() == [True, True, False]
