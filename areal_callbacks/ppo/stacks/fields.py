"""Fields of another stack's batch, by name, as padded tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def read_field(batch: Any, name: str) -> Any:
    """What a mapping (a dict, TensorDict or BatchedDataDict) holds under a name; None if it has no such key."""
    return batch[name] if name in set(batch.keys()) else None


def read_tensor(batch: Any, name: str) -> Tensor | None:
    """The same for a tensor; a jagged nested one ``[B, j]`` is padded with zeros on the right."""
    value = read_field(batch, name)
    return pad_nested(value) if isinstance(value, Tensor) else None


def pad_nested(tensor: Tensor) -> Tensor:
    """``[B, j]`` as ``[B, T]`` with zeros on the right; a plain tensor as it is."""
    return tensor.to_padded_tensor(0) if tensor.is_nested else tensor


def read_lengths(tensor: Tensor) -> Tensor:
    """Lengths of the rows of a jagged nested tensor ``[B, j]``: int64 ``[B]``."""
    jagged: Any = tensor
    lengths: Tensor = jagged.offsets().diff()
    return lengths


def pad_rows(batch: Mapping[str, Any], name: str, dtype: torch.dtype | None = None) -> Tensor | None:
    """A list of one row per sequence, tensors or lists, as ``[B, T]`` with zeros on the right; None without the key."""
    rows: Sequence[Any] | None = batch.get(name)
    if rows is None:
        return None
    tensors = [row.detach() if isinstance(row, Tensor) else torch.tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(tensors, batch_first=True)


def mask_lengths(lengths: Tensor, width: int | None = None) -> Tensor:
    """Bool ``[B, width]``, true for the first ``lengths`` positions; the width is that of the longest by default."""
    width = int(lengths.max()) if width is None else width
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(-1)


def require(value: Tensor | None, name: str) -> Tensor:
    """The tensor, or ValueError without one."""
    if value is None:
        raise ValueError(f"the batch has no {name}")
    return value
