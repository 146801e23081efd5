"""Summaries: float64 rows (sum, count, minimum, maximum) that stand for any amount of data.

A NaN among the values makes sum, minimum and maximum NaN, whatever the order; infinities are kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from areal_callbacks.core.types import ReduceType

EMPTY = (0.0, 0.0, math.inf, -math.inf)
"""The summary of nothing: merging it changes nothing."""

_CPU = torch.device("cpu")


def empty_rows(count: int, device: torch.device = _CPU) -> Tensor:
    """``[count, 4]`` rows, each the summary of nothing; made on the device, because a copy to it waits for it."""
    rows = torch.zeros(count, 4, dtype=torch.float64, device=device)
    rows[:, 2].fill_(math.inf)
    rows[:, 3].fill_(-math.inf)
    return rows


def merge_rows_(into: Tensor, other: Tensor) -> None:
    """Merge rows ``[..., 4]`` in place, on their device and without a host sync (``torch.minimum`` carries NaN)."""
    into[..., :2] += other[..., :2]
    into[..., 2] = torch.minimum(into[..., 2], other[..., 2])
    into[..., 3] = torch.maximum(into[..., 3], other[..., 3])


def summarise(values: Tensor, mask: Tensor, reduce_type: ReduceType) -> Tensor:
    """Summarise the masked elements of a tensor as a row ``[4]`` on its device, without a host sync.

    Masked-out elements are replaced, never multiplied away, so that NaN or infinite padding cannot reach the result.
    Columns that nobody reads for this reduce type keep their neutral values.
    """
    if not values.numel():
        return empty_rows(1, values.device)[0]
    count = mask.sum().double()
    nothing, infinity = torch.zeros_like(count), torch.full_like(count, math.inf)
    if reduce_type is ReduceType.DENOMINATOR:
        return torch.stack((nothing, count, infinity, -infinity))
    values = values.double()
    total = torch.where(mask, values, 0.0).sum()
    lowest, highest = infinity, -infinity
    if reduce_type in (ReduceType.AVG_MIN_MAX, ReduceType.MIN):
        lowest = torch.where(mask, values, math.inf).amin()
    if reduce_type in (ReduceType.AVG_MIN_MAX, ReduceType.MAX):
        highest = torch.where(mask, values, -math.inf).amax()
    return torch.stack((total, count, lowest, highest))


def summarise_number(value: Tensor) -> Tensor:
    """The row ``[4]`` of a scalar that is a one-element tensor, on its device."""
    number = value.reshape(()).double()
    infinity = torch.full_like(number, math.inf)
    return torch.stack((number, torch.ones_like(number), infinity, -infinity))
