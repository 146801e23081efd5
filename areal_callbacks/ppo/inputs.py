"""Checks and views of what a caller hands over: tensors per token with a mask, none of them changed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

_CPU_CHUNK = 1 << 16
_DEVICE_CHUNK = 1 << 20


def chosen(tracker: StatsTracker | None) -> StatsTracker:
    """The given tracker, or the default one."""
    return stats_tracker.get() if tracker is None else tracker


def boolean(mask: Tensor) -> Tensor:
    """A mask given as booleans, or as zeros and ones of any dtype."""
    return mask.detach() if mask.dtype == torch.bool else mask.detach() != 0


def check_shapes(mask: Tensor, **tensors: Tensor | None) -> None:
    """Raise ValueError for a tensor that has not exactly the mask's shape; a broadcastable one would count wrongly."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != mask.shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, its mask {list(mask.shape)}")


def measurable(tensor: Tensor) -> Tensor:
    """Detached, on a device that has float64."""
    tensor = tensor.detach()
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def selected(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """Float64 values with zeros where the mask is false: chosen, not multiplied, so that no padding gets through.

    None stands for a mask that is true everywhere.
    """
    return tensor.double() if mask is None else torch.where(mask, tensor.double(), 0.0)


def filled(tensor: Tensor, mask: Tensor | None, value: float) -> Tensor:
    """The tensor with another value than 0 where the mask is false."""
    return tensor if mask is None else torch.where(mask, tensor, value)


def chunk_size(tensor: Tensor) -> int:
    """Elements at once: what a cache holds (CPU), or little memory that keeps a device busy."""
    return _CPU_CHUNK if tensor.device.type == "cpu" else _DEVICE_CHUNK


def chunks(mask: Tensor, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Flat pieces of the mask and the tensors of :func:`chunk_size` elements."""
    size = chunk_size(mask)
    flat = [tensor.reshape(-1) for tensor in (mask, *tensors)]
    for start in range(0, mask.numel(), size):
        yield tuple(tensor[start : start + size] for tensor in flat)


def binned(place: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """Float64 ``[bins]``: how many elements, or what weights, are at each place in [0, bins)."""
    if place.device.type == "cpu":
        return torch.bincount(place, weights, bins).double()
    weights = torch.ones_like(place, dtype=torch.float64) if weights is None else weights
    totals = torch.zeros(bins, dtype=torch.float64, device=place.device)
    return totals.scatter_add_(0, place, weights)  # bincount would wait for the device


def record(tracker: StatsTracker, kind: ReduceType, rows: dict[str, Tensor]) -> None:
    """Record named summary rows, if there are any."""
    if rows:
        tracker.summaries(kind, **rows)


def record_counts(tracker: StatsTracker, **masks: Tensor) -> None:
    """Record the numbers of true elements; unlike ``denominator()`` without keeping the masks."""
    counts = {name: torch.count_nonzero(mask).double() for name, mask in masks.items()}
    rows = {name: mean_rows({name: torch.zeros_like(count)}, count)[name] for name, count in counts.items()}
    record(tracker, ReduceType.DENOMINATOR, rows)


def mean_rows(sums: dict[str, Tensor], count: Tensor) -> dict[str, Tensor]:
    """Summary rows of metrics that export a mean: sums over one count, all zero-dimensional float64."""
    infinity = torch.full_like(count, torch.inf)
    return {name: torch.stack((total, count, infinity, -infinity)) for name, total in sums.items()}
