"""Which way the tokens of a batch are pushed."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.inputs import boolean, check_shapes, chosen, mean_rows, measurable


def log_advantage_stats(advantages: Tensor, mask: Tensor, tracker: StatsTracker | None = None) -> None:
    """Record ``ppo_actor/advantage_{positive,negative,zero}_fraction``: fractions of the valid tokens.

    Token occupancy, not task success and not the signs of gradients. A NaN advantage of a valid token has no sign and
    makes all three NaN.

    Args:
        advantages: shaped advantages per token, before filtering; any float dtype.
        mask: the batch's loss mask (boolean or 0/1), same shape.
        tracker: None for the default tracker.

    Raises:
        ValueError: the shapes differ.
    """
    check_shapes(mask, advantages=advantages)
    advantages = measurable(advantages)
    valid = boolean(mask).to(advantages.device, non_blocking=True)
    spoiled = torch.where((torch.isnan(advantages) & valid).any(), torch.nan, 0.0).double()
    signs = {"positive": advantages > 0, "negative": advantages < 0, "zero": advantages == 0}
    sums = {f"advantage_{name}_fraction": (sign & valid).sum() + spoiled for name, sign in signs.items()}
    tracker = chosen(tracker)
    with tracker.disable_scope(), tracker.scope("ppo_actor"):
        tracker.summaries(ReduceType.AVG, **mean_rows(sums, valid.sum().double()))
