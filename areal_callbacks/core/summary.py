"""Summaries: float64 rows (sum, count, minimum, maximum) that stand for any amount of data.

A NaN among the values makes sum, minimum and maximum NaN, whatever the order; infinities are kept. What a mask leaves
out is replaced, never multiplied away, so that NaN or infinite padding cannot reach the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from areal_callbacks.core.outside import Outside, is_plain, with_known_bits
from areal_callbacks.core.types import ReduceType

EMPTY = (0.0, 0.0, math.inf, -math.inf)
"""The summary of nothing: merging it changes nothing."""

_CPU = torch.device("cpu")
_MINIMUM, _MAXIMUM = 2, 3
_WITH_MINIMUM = (ReduceType.AVG_MIN_MAX, ReduceType.MIN)
_WITH_MAXIMUM = (ReduceType.AVG_MIN_MAX, ReduceType.MAX)
_SMALL = 4096
"""Elements up to which the number of operations decides about the time, not the memory that they read."""
_kept_fills: dict[tuple[torch.device, torch.dtype], Tensor] = {}
_AT_ONCE = 1 << 20
"""Elements that are stacked, so that tensors of any size need little memory."""


def empty_rows(count: int, device: torch.device = _CPU) -> Tensor:
    """``[count, 4]`` rows, each the summary of nothing; made on the device, because a copy to it waits for it."""
    rows = torch.zeros(count, 4, dtype=torch.float64, device=device)
    rows[:, _MINIMUM].fill_(math.inf)
    rows[:, _MAXIMUM].fill_(-math.inf)
    return rows


def merge_rows_(into: Tensor, other: Tensor) -> None:
    """Merge rows ``[..., 4]`` in place, on their device and without a host sync (``torch.minimum`` carries NaN)."""
    minimum, maximum = into[..., _MINIMUM], into[..., _MAXIMUM]
    into[..., :_MINIMUM].add_(other[..., :_MINIMUM])
    torch.minimum(minimum, other[..., _MINIMUM], out=minimum)
    torch.maximum(maximum, other[..., _MAXIMUM], out=maximum)


def summarise_each(
    tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor], reduce_type: ReduceType
) -> dict[str, Tensor]:
    """Name → the summary ``[4]`` of a tensor over the mask of its name, on the tensor's device if that has float64.

    Tensors under one mask are summarised together.
    """
    values = {name: _with_float64(tensor.detach()) for name, tensor in tensors.items()}
    together: dict[tuple[int, torch.device], list[str]] = {}
    for name, tensor in values.items():
        together.setdefault((id(masks[name]), tensor.device), []).append(name)
    rows: dict[str, Tensor] = {}
    for (_, device), names in together.items():
        # A copy to the host that does not wait would be read before it is complete.
        mask = masks[names[0]].to(device, non_blocking=device.type != "cpu")
        rows.update(zip(names, summarise_all([values[name] for name in names], mask, reduce_type).unbind()))
    return rows


def _with_float64(tensor: Tensor) -> Tensor:
    """Where float64 exists."""
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def summarise(values: Tensor, mask: Tensor, reduce_type: ReduceType) -> Tensor:
    """The summary ``[4]`` of one tensor; see :func:`summarise_all`."""
    return summarise_all([values], mask, reduce_type)[0]


def summarise_all(tensors: Sequence[Tensor], mask: Tensor, reduce_type: ReduceType) -> Tensor:
    """The summaries ``[len(tensors), 4]`` of the masked elements of tensors, on their device, without a host sync.

    Columns that nobody reads for this reduce type keep their neutral values.

    Args:
        tensors: real, of the mask's shape and on its device.
        mask: bool.
        reduce_type: decides what is computed.
    """
    if not mask.numel():
        return empty_rows(len(tensors), mask.device)
    if reduce_type is ReduceType.DENOMINATOR:
        count = mask.sum().double()
        zero, infinity = torch.zeros_like(count), torch.full_like(count, math.inf)
        return torch.stack((zero, count, infinity, -infinity)).expand(len(tensors), 4)
    numbers = [with_known_bits(values) for values in tensors]
    if (len(numbers) == 1 or mask.numel() > _SMALL) and is_plain(mask) and all(map(is_plain, numbers)):
        return _one_by_one(numbers, mask, reduce_type)
    step = max(1, _AT_ONCE // mask.numel())
    parts = [numbers[start : start + step] for start in range(0, len(numbers), step)]
    rows = [_stacked([values.reshape(-1) for values in part], mask.reshape(-1), reduce_type) for part in parts]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _one_by_one(tensors: Sequence[Tensor], mask: Tensor, reduce_type: ReduceType) -> Tensor:
    """For the CPU: the elements of one tensor stay in its cache from one operation to the next."""
    count, outside = mask.sum().double(), Outside(mask)
    lowest, highest = _neutral(count, reduce_type)
    numbers: list[Tensor] = []
    for values in tensors:
        inside = outside.zero(values)
        total = inside.sum(dtype=torch.float64)
        if reduce_type in _WITH_MINIMUM:
            lowest = outside.fill_infinite_(inside).amin().double()
        if reduce_type in _WITH_MAXIMUM:
            highest = outside.fill_infinite_(inside, negative=True).amax().double()
        numbers += total, count, lowest, highest
    return torch.stack(numbers).view(-1, 4)


def _stacked(tensors: Sequence[Tensor], mask: Tensor, reduce_type: ReduceType) -> Tensor:
    """For accelerators and few elements: the number of operations does not grow with the number of tensors.

    Several tensors are stacked with ones, of which the sum is their count.

    Args:
        tensors: ``[elements]`` each.
        mask: ``[elements]``.
        reduce_type: decides what is computed.
    """
    number, is_single = len(tensors), len(tensors) == 1
    wanted = [True, reduce_type in _WITH_MINIMUM, reduce_type in _WITH_MAXIMUM]
    ones = _fills(tensors[0])[3:].expand(len(mask))
    stacked = tensors[0].view(1, -1) if is_single else torch.stack([*tensors, ones])
    fills = _fills(stacked)[: 3 if wanted[2] else 2 if wanted[1] else 1]
    filled = torch.where(mask, stacked, fills.view(-1, 1, 1))
    total = filled[0].sum(1, dtype=torch.float64)
    count = mask.sum().view(1) if is_single else total[number:].expand(number)
    _, lowest, highest, _ = _fills(total).view(-1, 1).expand(4, number)
    if wanted[1]:
        lowest = filled[1, :number].amin(1)
    if wanted[2]:
        highest = filled[2, :number].amax(1)
    return torch.stack((total[:number], count, lowest, highest), 1)  # as float64, which the sum is


def _fills(like: Tensor) -> Tensor:
    """``[4]`` in dtype and on the device of a tensor: what changes no sum, no minimum, no maximum, and one."""
    key = (like.device, like.dtype)
    fills = _kept_fills.get(key)
    if fills is None:
        with torch.inference_mode(False):
            fills = torch.zeros(4, dtype=like.dtype, device=like.device)
            fills[1:2].fill_(math.inf)
            fills[2:3].fill_(-math.inf)
            fills[3:].fill_(1)
        if not torch._C._len_torch_dispatch_stack():  # else it may be a fake one
            _kept_fills[key] = fills
    return fills


def _neutral(count: Tensor, reduce_type: ReduceType) -> tuple[Tensor, Tensor]:
    """Minimum and maximum where they are not computed; anything where they are."""
    return (
        count if reduce_type in _WITH_MINIMUM else torch.full_like(count, math.inf),
        count if reduce_type in _WITH_MAXIMUM else torch.full_like(count, -math.inf),
    )


def summarise_number(value: Tensor) -> Tensor:
    """The row ``[4]`` of a scalar that is a one-element tensor, on its device."""
    number = value.reshape(()).double()
    infinity = torch.full_like(number, math.inf)
    return torch.stack((number, torch.ones_like(number), infinity, -infinity))
