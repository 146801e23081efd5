"""How long the sequences of a batch are, read from the arguments of a model's forward without a host sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Lengths(NamedTuple):
    """Sequence lengths of one batch.

    Attributes:
        values: 1-D integer tensor on the batch's device; zeros are no sequences.
        bound: no length is larger; known on the host.
    """

    values: Tensor
    bound: int


def sequence_lengths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lengths | None:
    """The original lengths: padding is not counted, prompt and response both are.

    In this order: ``cu_seq_lens_q`` (packed); a 2-D ``attention_mask``, split where ``position_ids`` restart; such
    ``position_ids`` alone (packed or padding-free); else the full width of ``input_ids`` or ``inputs_embeds``, or of
    the first positional integer tensor.
    A mapping or sequence as first argument, as a batch comes to a training step, is looked into.

    Returns:
        None where the arguments hold none of these.
    """
    if args and isinstance(args[0], Mapping):
        args, kwargs = args[1:], {**args[0], **kwargs}
    elif args and isinstance(args[0], list | tuple):
        args = (*args[0], *args[1:])
    tokens = _token_tensor(args, kwargs)
    boundaries = _first(kwargs, "cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q")
    if boundaries is not None:
        bound = tokens.shape[:2].numel() if tokens is not None else None
        return None if bound is None else Lengths(boundaries.reshape(-1).diff().clamp(0, bound).long(), bound)
    mask = _two_dimensional(kwargs, "attention_mask")
    positions = _two_dimensional(kwargs, "position_ids")
    if positions is not None and mask is not None and positions.shape[-1] == mask.shape[-1]:
        return Lengths(_segment_lengths(positions.expand(mask.shape), mask != 0), mask.shape[-1])
    if mask is not None:
        return Lengths(mask.count_nonzero(-1), mask.shape[-1])
    if tokens is None:
        return None
    batch, width = tokens.shape[:2]
    if positions is not None and positions.shape[-1] == width:
        positions = positions.expand(batch, width)
        return Lengths(_segment_lengths(positions, torch.ones_like(positions)), width)
    return Lengths(torch.full((batch,), width, dtype=torch.long, device=tokens.device), width)


def _segment_lengths(positions: Tensor, present: Tensor) -> Tensor:
    """Tokens that are present between two restarts of the positions, in as many slots as there are positions."""
    starts = torch.ones_like(positions, dtype=torch.bool)
    starts[:, 1:] = positions[:, 1:] <= positions[:, :-1]
    segments = starts.reshape(-1).cumsum(0) - 1
    return torch.zeros_like(segments).scatter_add_(0, segments, present.reshape(-1).long())


def _token_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor whose first two dimensions are batch and sequence."""
    named = _first(kwargs, "input_ids", "inputs_embeds", "tokens")
    if named is not None:
        return named if named.dim() >= 2 else named.unsqueeze(0)
    for value in args:
        if isinstance(value, Tensor) and value.dim() == 2 and not (value.is_floating_point() or value.is_complex()):
            return value
    return None


def _two_dimensional(kwargs: Mapping[str, Any], name: str) -> Tensor | None:
    value = kwargs.get(name)
    return value if isinstance(value, Tensor) and value.dim() == 2 else None


def _first(kwargs: Mapping[str, Any], *names: str) -> Tensor | None:
    for name in names:
        value = kwargs.get(name)
        if isinstance(value, Tensor):
            return value
    return None
