"""Quantiles of nonnegative numbers from counts in logarithmic bins, which add over batches and ranks.

Every octave ``[2**e, 2**(e+1))`` for e from -32 to 15 has 16 bins of equal width: the top bits of a float64 number are
its bin. A quantile is the middle of the bin that holds it, so it is off by at most 1/32 of itself. Numbers below 2**-32
(2.3e-10) count as 0, numbers above 2**16 as 2**16.

The quantile itself is the inverse of the empirical distribution function: definition 1 of Hyndman and Fan, "Sample
Quantiles in Statistical Packages" (1996).
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from areal_callbacks.core.formulas import formula
from areal_callbacks.ppo.chunks import sum_by_bin

LOWEST, HIGHEST = -32, 16
_BITS = 4
_PER_OCTAVE = 1 << _BITS
_EXPONENT_BIAS = 1023
_FIRST = (_EXPONENT_BIAS + LOWEST) << _BITS

BINS = 1 + _PER_OCTAVE * (HIGHEST - LOWEST) + 1
"""One for everything below 2**LOWEST, sixteen an octave, one for everything above."""
RELATIVE_ERROR = 1 / (2 * _PER_OCTAVE)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


def count_by_magnitude(values: Tensor, mask: Tensor | None) -> Tensor:
    """Counts of the masked elements per bin, float64 ``[BINS]``, without a wait for the device.

    Args:
        values: float64, nonnegative where the mask is true.
        mask: boolean, same shape; None for all elements.
    """
    indices = (values.contiguous().view(torch.int64) >> (52 - _BITS)).sub_(_FIRST - 1).clamp_(0, BINS - 1)
    indices = indices if mask is None else torch.where(mask, indices, BINS)  # one more bin, which is dropped
    return sum_by_bin(indices.reshape(-1), BINS + 1)[:BINS]


@formula(width=BINS)
def quantiles(counts: list[float]) -> dict[str, float]:
    """The smallest value that at least the given fraction does not exceed; all NaN where a count is NaN."""
    total = sum(counts)
    if math.isnan(total):
        return dict.fromkeys(QUANTILES, math.nan)
    if total == 0:
        return {}
    cumulative = list(itertools.accumulate(counts))
    return {name: _find_middle(_find_bin(cumulative, fraction * total)) for name, fraction in QUANTILES.items()}


def _find_bin(cumulative: list[float], rank: float) -> int:
    needed = max(1, math.ceil(rank * (1 - 1e-12)))  # 0.9 * 10 may come out just above 9
    return next(index for index, count in enumerate(cumulative) if count >= needed)


def _find_middle(index: int) -> float:
    if index == 0:
        return 0.0
    octave, step = divmod(index - 1, _PER_OCTAVE)
    if index == BINS - 1:
        return 2.0**HIGHEST
    return 2.0 ** (octave + LOWEST) * (1 + (step + 0.5) / _PER_OCTAVE)
