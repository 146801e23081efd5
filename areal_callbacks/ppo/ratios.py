"""Moments of importance ratios ρ = exp(d), as sums that add over batches and ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from areal_callbacks.core.formulas import formula

OCTAVES_PER_BUCKET = 512
BUCKETS = 64
_FIRST_BUCKET = -BUCKETS // 2
_LN2 = math.log(2.0)


@formula(width=3)
def token_ratios(sums: list[float]) -> dict[str, float]:
    """From the count n and the sums of x = ρ - 1 and x²: ratios near 1 then lose nothing to cancellation.

    ``ratio_mean`` E[ρ]; ``ratio_mean_standard_error`` sqrt(Var ρ / n), tokens taken as independent; ``chi2`` E[ρ²] - 1;
    ``ess_fraction`` (Σρ)² / (n Σρ²), the part of the tokens that an importance-weighted mean has the information of.
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


def squared_ratio_sums(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Count and sum of exp(2·log_ratio) over the masked elements, for log ratios whose exponential no float can hold.

    Each bucket holds the numbers of 512 octaves, scaled to fit: float64 ``[1 + BUCKETS]``. Log ratios above about 5800
    count as infinite, below -5800 as a ratio of 0.
    """
    octaves = torch.where(mask, log_ratio * (2 / _LN2), -torch.inf)
    place = torch.round(octaves / OCTAVES_PER_BUCKET).nan_to_num(0.0).clamp(_FIRST_BUCKET, _FIRST_BUCKET + BUCKETS - 1)
    scaled = torch.exp2(octaves - place * OCTAVES_PER_BUCKET)
    sums = torch.zeros(1 + BUCKETS, dtype=torch.float64, device=log_ratio.device)
    sums[0] = mask.sum()
    sums.scatter_add_(0, 1 + (place - _FIRST_BUCKET).long().reshape(-1), scaled.reshape(-1))
    return sums


@formula(width=1 + BUCKETS)
def sequence_chi2(sums: list[float]) -> dict[str, float]:
    """``chi2_seq`` = E[ρ²] - 1 with ρ the ratio of a whole sequence, and ``log1p_chi2_seq`` = log E[ρ²], which stays
    finite where the first is infinite."""
    count, *buckets = sums
    if count == 0:
        return {}
    if not all(math.isfinite(bucket) for bucket in buckets):
        value = math.nan if any(math.isnan(bucket) for bucket in buckets) else math.inf
        return {"chi2_seq": value, "log1p_chi2_seq": value}
    logs = [
        math.log(bucket / count) + (place + _FIRST_BUCKET) * OCTAVES_PER_BUCKET * _LN2
        for place, bucket in enumerate(buckets)
        if bucket > 0
    ]
    if not logs:
        return {"chi2_seq": -1.0, "log1p_chi2_seq": -math.inf}
    largest = max(logs)
    log_mean = largest + math.log(math.fsum(math.exp(value - largest) for value in logs))
    return {"chi2_seq": math.expm1(log_mean) if log_mean < 709 else math.inf, "log1p_chi2_seq": log_mean}
