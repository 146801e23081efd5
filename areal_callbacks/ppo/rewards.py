"""One task reward from several reward functions."""

from __future__ import annotations

import torch
from torch import Tensor


def combine_rewards(per_function: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Add the weighted rewards of F functions; a NaN reward is one that the function did not give.

    Args:
        per_function: ``[B, F]`` float.
        weights: ``[F]`` float.

    Returns:
        The rewards, float64 ``[B]``, and which sequences have any, bool ``[B]``.
    """
    given = ~torch.isnan(per_function)
    weighted = torch.where(given, per_function, 0.0).double() * weights.to(per_function.device).double()
    return weighted.sum(-1), given.any(-1)
