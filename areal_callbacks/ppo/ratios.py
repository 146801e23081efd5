"""Moments of importance ratios ρ = exp(d), as sums that add over batches and ranks.

E[ρ²] - 1 over tokens or sequences that the rollout sampled estimates Pearson's χ² divergence of the trainer's
distribution from the rollout's, and log E[ρ²] the Rényi divergence of order 2. (Σρ)² / Σρ² is the effective sample size
of Kish, "Survey Sampling" (1965).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from areal_callbacks.core.formulas import formula

OCTAVES_PER_BUCKET = 512
BUCKETS = 64
_FIRST_BUCKET = -BUCKETS // 2
_LN2 = math.log(2.0)
_EXPM1_FINITE = 709.0


@formula(width=3)
def token_ratios(sums: list[float]) -> dict[str, float]:
    """From the count n and the sums of x = ρ - 1 and x², so that ratios near 1 lose no digits to cancellation.

    ``ratio_mean`` E[ρ]; ``ratio_mean_standard_error`` sqrt(Var ρ / n) with the population variance, tokens taken as
    independent; ``chi2`` E[ρ²] - 1; ``ess_fraction`` (Σρ)² / (n Σρ²), the effective sample size per token.
    """
    count, total, squares = sums
    if count == 0:
        return {}
    mean, square = total / count, squares / count
    chi2 = square + 2 * mean
    variance = square - mean * mean
    return {
        "ratio_mean": 1 + mean,
        "ratio_mean_standard_error": math.sqrt((0.0 if variance < 0 else variance) / count),
        "chi2": chi2,
        "ess_fraction": (1 + mean) * (1 + mean) / (1 + chi2) if chi2 != -1 else math.nan,
    }


def sum_squared_ratios(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Count and sum of exp(2·log_ratio) over the masked elements, for log ratios whose exponential no float can hold.

    Args:
        log_ratio: float64, any shape.
        mask: bool, same shape.

    Returns:
        Float64 ``[1 + BUCKETS]``: the count, then the sum in parts. Each bucket holds the numbers of 512 octaves,
        scaled to fit. Log ratios above about 5800 count as infinite, below -5800 as a ratio of 0.
    """
    octaves = torch.where(mask, log_ratio * (2 / _LN2), -torch.inf)
    bucket = torch.round(octaves / OCTAVES_PER_BUCKET).nan_to_num(0.0).clamp(_FIRST_BUCKET, _FIRST_BUCKET + BUCKETS - 1)
    scaled = torch.exp2(octaves - bucket * OCTAVES_PER_BUCKET)
    sums = torch.zeros(1 + BUCKETS, dtype=torch.float64, device=log_ratio.device)
    sums[0] = mask.sum()
    sums.scatter_add_(0, 1 + (bucket - _FIRST_BUCKET).long().reshape(-1), scaled.reshape(-1))
    return sums


@formula(width=1 + BUCKETS)
def sequence_chi2(sums: list[float]) -> dict[str, float]:
    """``chi2_seq`` = E[ρ²] - 1 with ρ the ratio of a whole sequence, and ``log1p_chi2_seq`` = log E[ρ²], which stays
    finite where the first is infinite."""
    count, *buckets = sums
    if count == 0:
        return {}
    log_mean = _average_in_log_space(count, buckets)
    chi2 = math.inf if log_mean >= _EXPM1_FINITE else math.expm1(log_mean)
    return {"chi2_seq": chi2, "log1p_chi2_seq": log_mean}


def _average_in_log_space(count: float, buckets: list[float]) -> float:
    """The logarithm of the mean that a count and the buckets of :func:`sum_squared_ratios` stand for."""
    if not all(math.isfinite(bucket) for bucket in buckets):
        return math.nan if any(math.isnan(bucket) for bucket in buckets) else math.inf
    scales = ((index + _FIRST_BUCKET) * OCTAVES_PER_BUCKET * _LN2 for index in range(BUCKETS))
    logs = [math.log(bucket / count) + scale for bucket, scale in zip(buckets, scales) if bucket > 0]
    if not logs:
        return -math.inf
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in logs))
