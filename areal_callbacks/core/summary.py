"""Four numbers that stand for any amount of data: sum, count, minimum, maximum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.core.types import ReduceType

EMPTY = (0.0, 0.0, math.inf, -math.inf)
"""The summary of nothing, and the neutral element of :meth:`Summary.merge`."""


class Summary(NamedTuple):
    """Sum, count, minimum and maximum of some float64 values.

    A NaN among the values makes sum, minimum and maximum NaN whatever the order; infinities are kept.
    """

    sum: float
    count: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Summarise some numbers."""
        numbers = [float(value) for value in values]
        if any(math.isnan(number) for number in numbers):
            return cls(math.nan, len(numbers), math.nan, math.nan)
        return cls(sum(numbers), len(numbers), min(numbers, default=math.inf), max(numbers, default=-math.inf))

    def merge(self, other: Summary) -> Summary:
        """The summary of both populations."""
        nan = math.isnan(self.minimum) or math.isnan(other.minimum)
        return Summary(
            self.sum + other.sum,
            self.count + other.count,
            math.nan if nan else min(self.minimum, other.minimum),
            math.nan if nan else max(self.maximum, other.maximum),
        )


def empty_rows(count: int, device: torch.device | None = None) -> Tensor:
    """``[count, 4]`` float64 rows, each the summary of nothing."""
    return torch.tensor(EMPTY, dtype=torch.float64, device=device).repeat(count, 1)


def merge_rows_(into: Tensor, other: Tensor) -> None:
    """Merge rows ``[..., 4]`` in place, on their device and without a host sync (``torch.minimum`` carries NaN)."""
    into[..., :2] += other[..., :2]
    into[..., 2] = torch.minimum(into[..., 2], other[..., 2])
    into[..., 3] = torch.maximum(into[..., 3], other[..., 3])


def summarise(values: Tensor, mask: Tensor, reduce_type: ReduceType) -> Tensor:
    """Summarise the masked elements of a tensor as a float64 row ``[4]`` on its device, without a host sync.

    Masked-out elements are replaced, never multiplied away, so that NaN or infinite padding cannot reach the result.
    Sums and averages leave the extrema at their neutral values: nobody reads them.
    """
    if not values.numel():
        return empty_rows(1, values.device)[0]
    values = values.double()
    total = torch.where(mask, values, 0.0).sum()
    count = mask.sum().double()
    lowest = highest = None
    if reduce_type in (ReduceType.AVG_MIN_MAX, ReduceType.MIN):
        lowest = torch.where(mask, values, math.inf).amin()
    if reduce_type in (ReduceType.AVG_MIN_MAX, ReduceType.MAX):
        highest = torch.where(mask, values, -math.inf).amax()
    return torch.stack(
        [
            total,
            count,
            total.new_full((), math.inf) if lowest is None else lowest,
            total.new_full((), -math.inf) if highest is None else highest,
        ]
    )
