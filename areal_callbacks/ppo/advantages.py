"""Signs of the advantages of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.rows import enter_scope, record_means
from areal_callbacks.ppo.tensors import check_per_token, move, to_bool, to_float64_device


def log_advantage_stats(advantages: Tensor, mask: Tensor, tracker: StatsTracker | None = None) -> None:
    """Record ``ppo_actor/advantage_{positive,negative,zero}_fraction``: fractions of the valid tokens.

    They are fractions of tokens, neither a success rate nor the signs of gradients. A NaN advantage of a valid token
    has no sign and makes all three NaN.

    Args:
        advantages: shaped advantages per token, before filtering; any float dtype.
        mask: the batch's loss mask (boolean or 0/1), same shape.
        tracker: None for the default tracker.

    Raises:
        ValueError: the shapes differ.
    """
    check_per_token(mask, advantages=advantages)
    advantages = to_float64_device(advantages)
    valid = move(to_bool(mask), advantages.device)
    invalid = torch.where((torch.isnan(advantages) & valid).any(), torch.nan, 0.0).double()
    signs = {"positive": advantages > 0, "negative": advantages < 0, "zero": advantages == 0}
    sums = {f"advantage_{name}_fraction": (sign & valid).sum() + invalid for name, sign in signs.items()}
    with enter_scope(tracker) as tracker:
        record_means(tracker, sums, valid.sum().double())
