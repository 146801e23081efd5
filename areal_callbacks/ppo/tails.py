"""Tails of the importance ratio ρ = exp(d): tokens whose ratio or its inverse is above a threshold.

max(ρ, 1/ρ) > t is |d| > log t. The fraction of such tokens is the extreme token fraction of R3, Eq. 3 (Ma et al.,
"Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", 2025).
"""

from __future__ import annotations

import math

from torch import Tensor

from areal_callbacks.ppo.tensors import count_true

THRESHOLDS = (1.5, 2, 3, 5, 10)
LOG_THRESHOLDS = {threshold: math.log(threshold) for threshold in THRESHOLDS}
SMALLEST = LOG_THRESHOLDS[THRESHOLDS[0]]
"""A token with |d| up to this number is in no tail."""

OUTSIDE = {f"ratio_outside_{threshold}": log for threshold, log in LOG_THRESHOLDS.items()}
ABOVE = {f"ratio_above_{threshold}": log for threshold, log in LOG_THRESHOLDS.items()}


def count_outside(diff: Tensor) -> dict[str, Tensor]:
    """Numbers of tokens with |d| > log t, float64 ``[]`` each; ``diff`` is float64 ``[N]``."""
    abs_diff = diff.abs()
    return {name: count_true(abs_diff > log) for name, log in OUTSIDE.items()}


def count_above(diff: Tensor) -> dict[str, Tensor]:
    """Numbers of tokens with d > log t, float64 ``[]`` each; ``diff`` is float64 ``[N]``."""
    return {name: count_true(diff > log) for name, log in ABOVE.items()}


def subtract_above(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """``ratio_below_<t>``: numbers of tokens with d < -log t, from those outside and above; all float64 ``[]``."""
    return {f"ratio_below_{t}": sums[f"ratio_outside_{t}"] - sums[f"ratio_above_{t}"] for t in THRESHOLDS}
