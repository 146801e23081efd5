"""Shape checks and views of the tensors that a caller gives; none of them is changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_per_token(mask: Tensor, **tensors: Tensor | None) -> None:
    """Raise ValueError for a tensor that has not exactly the mask's shape; a broadcastable one would count wrongly."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != mask.shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, its mask {list(mask.shape)}")


def check_per_sequence(mask: Tensor, **tensors: Tensor | None) -> None:
    """Raise ValueError for a tensor that is not ``[B]``, one number for each row of the mask ``[B, T]``."""
    expected = mask.shape[:1]
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != expected:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {list(expected)}: one per sequence")


def expand_to_tokens(values: Tensor | None, mask: Tensor) -> Tensor | None:
    """``[B]`` as ``[B, T]`` with the mask's T; anything else as it is."""
    if values is not None and values.shape == mask.shape[:-1]:
        return values.unsqueeze(-1).expand(mask.shape)
    return values


def drop_missing(**tensors: Tensor | None) -> dict[str, Any]:
    """The tensors that are not None, by name."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def to_bool(mask: Tensor) -> Tensor:
    """A mask given as booleans, or as zeros and ones of any dtype."""
    return mask.detach() if mask.dtype == torch.bool else mask.detach() != 0


def to_float64_device(tensor: Tensor) -> Tensor:
    """Detached, on a device that has float64."""
    tensor = tensor.detach()
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without a wait for an accelerator unless the device is the CPU.

    A copy to the CPU that does not wait could be read before it is complete.
    """
    return tensor.to(device, non_blocking=device.type != "cpu")


def select(values: Tensor, mask: Tensor | None) -> Tensor:
    """Float64 values with 0 where the mask is false; None is a mask that is true everywhere.

    Masked values are replaced, not multiplied by 0: NaN and infinite padding would stay NaN.
    """
    return values.double() if mask is None else torch.where(mask, values.double(), 0.0)


def fill(values: Tensor, mask: Tensor | None, number: float) -> Tensor:
    """The values with ``number`` where the mask is false; None is a mask that is true everywhere."""
    return values if mask is None else torch.where(mask, values, number)


def count_true(flags: Tensor) -> Tensor:
    """Number of true elements, float64 ``[]``."""
    return torch.count_nonzero(flags).double()
