"""Clipping of importance ratios in a policy loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """Where a policy loss clips the importance ratio ρ.

    Attributes:
        lower: tokens with a negative advantage are clipped below this ratio; 0 for never.
        upper: tokens with a positive advantage are clipped above this ratio.
        dual: tokens with a negative advantage are clipped above this ratio; None for never. Dual-clip PPO: Ye et al.,
            "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning" (2020).
        surrogate: the loss is that of :func:`compute_surrogate_loss`, so that it can be computed if it is not given.
    """

    lower: float = 0.8
    upper: float = 1.2
    dual: float | None = None
    surrogate: bool = True


class ClippedTokens(NamedTuple):
    """Tokens clipped at each bound: bool, the shape of the ratios."""

    low: Tensor
    high: Tensor
    dual: Tensor


def find_clipped(ratio: Tensor, advantages: Tensor, clip: Clip) -> ClippedTokens:
    """Find the tokens whose gradient is cut by each bound; ``ratio`` and ``advantages`` are float64 of one shape."""
    negative = advantages < 0
    dual = torch.zeros_like(negative) if clip.dual is None else negative & (ratio > clip.dual)
    return ClippedTokens(negative & (ratio < clip.lower), (advantages > 0) & (ratio > clip.upper), dual)


def compute_surrogate_loss(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """-min(ρA, clip(ρ, lower, upper) A) per token; with a dual bound ρ is min(ρ, dual) in the first term.

    Clipped surrogate objective, negated: Schulman et al., "Proximal Policy Optimization Algorithms" (2017), Eq. 7.
    """
    bounded = ratio if clip.dual is None else ratio.clamp(max=clip.dual)
    return -torch.minimum(bounded * advantages, ratio.clamp(clip.lower, clip.upper) * advantages)
