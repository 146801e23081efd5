"""What a call was given, in the shape of the rows ``[B, T]`` that it is about; None where it does not fit."""

from __future__ import annotations

import torch
from torch import Tensor


def fit_rows(value: Tensor, shape: tuple[int, int], *, is_mask: bool = False) -> Tensor | None:
    """A value with one number for each id, as ``[B, T]``; a mask may hold them as floats."""
    if not value.dim() or value.numel() != shape[0] * shape[1] or value.shape[-1] != shape[1]:
        return None
    return None if value.is_floating_point() and not is_mask else value.reshape(shape)


def fit_pairs(value: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """A mask of queries and keys as bool ``[B, T, T]``: True or 0.0 in additive masks is seen."""
    batch, width = shape
    if value.dim() < 3 or tuple(value.shape[-2:]) != (width, width):
        return None
    first_head = value[:, 0] if value.dim() == 4 else value
    seen = first_head > -1 if value.is_floating_point() else first_head.bool()
    return seen.expand(batch, width, width) if len(seen) in (1, batch) else None


def fit_positions(value: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Positions ``[T]``, ``[B, T]`` or ``[axes, B, T]`` as ``[axes, B, T]``."""
    if value.is_floating_point() or not value.dim() or value.shape[-1] != shape[1]:
        return None
    axes = value.reshape(-1, *value.shape[-2:]) if value.dim() > 1 else value.reshape(1, 1, -1)
    return axes.expand(-1, *shape) if axes.shape[1] in (1, shape[0]) else None


def fit_lengths(lengths: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Numbers of ids at the beginning of each row, as a mask of 0 and 1."""
    if lengths.is_floating_point() or lengths.shape != shape[:1]:
        return None
    return torch.tensor([[int(place < length) for place in range(shape[1])] for length in lengths.tolist()])
