"""Large tensors in pieces that fit a CPU cache, and sums of their elements by bin."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_CPU_CHUNK = 1 << 16
_DEVICE_CHUNK = 1 << 20


def chunk_size(tensor: Tensor) -> int:
    """Elements per chunk: what a cache holds (CPU), or enough work for an accelerator in little memory."""
    return _CPU_CHUNK if tensor.device.type == "cpu" else _DEVICE_CHUNK


def split_flat(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Flat views of :func:`chunk_size` elements, the last one shorter, of tensors that have one shape and device."""
    size = chunk_size(tensors[0])
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), size):
        yield tuple(tensor[start : start + size] for tensor in flat)


def sum_by_bin(indices: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """Sums of the weights per bin, float64 ``[bins]``, without a wait for the device.

    Args:
        indices: int64 ``[N]``, each in [0, bins).
        bins: number of bins.
        weights: float64 ``[N]``; None counts the elements.
    """
    if indices.device.type == "cpu":
        return torch.bincount(indices, weights, bins).double()
    weights = torch.ones_like(indices, dtype=torch.float64) if weights is None else weights
    sums = torch.zeros(bins, dtype=torch.float64, device=indices.device)
    return sums.scatter_add_(0, indices, weights)  # bincount would wait for the device
