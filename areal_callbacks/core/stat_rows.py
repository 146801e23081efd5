"""From the tensors of a recording call to summary rows; everything that a caller can get wrong is found here first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from areal_callbacks.core.numbers import read_local
from areal_callbacks.core.summary import summarise_each
from areal_callbacks.core.types import ReduceType
from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.reporting import report_once

_TENSOR_KINDS = (ReduceType.AVG_MIN_MAX, ReduceType.AVG, ReduceType.SUM, ReduceType.MIN, ReduceType.MAX)


def tensor_kind(reduce_type: ReduceType | None) -> ReduceType:
    """The kind that was asked for, AVG_MIN_MAX by default.

    Raises:
        ValueError: tensors cannot be of that kind.
    """
    kind = ReduceType.AVG_MIN_MAX if reduce_type is None else reduce_type
    if kind not in _TENSOR_KINDS:
        choices = ", ".join(choice.name for choice in _TENSOR_KINDS)
        raise ValueError(f"reduce_type must be one of {choices}, got {reduce_type!r}")
    return kind


def check_mask(mask: Tensor, name: str) -> None:
    """ValueError unless the mask is a boolean tensor."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"denominator {name!r} must be a boolean tensor, got {got}")


def count_rows(prefix: str, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full key → row ``[4]`` of a denominator; without those that cannot be read, see :func:`stat_rows`."""
    return _summarise(prefix, masks, masks, ReduceType.DENOMINATOR)


def stat_rows(
    prefix: str, tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor], kind: ReduceType
) -> dict[str, Tensor]:
    """Full key → row ``[4]`` of a tensor over the mask of its name.

    A tensor without values on this rank (a meta or fake tensor, a part of a DTensor), or of a kind that torch cannot
    sum, costs its key in this interval and one message: raising would end a training loop, and reading all parts of a
    DTensor is a collective.

    Raises:
        ValueError: one of them is not a real tensor of its mask's shape.
    """
    for name, tensor in tensors.items():
        _check_values(tensor, masks[name], name)
    return _summarise(prefix, tensors, masks, kind)


def _summarise(
    prefix: str, tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor], kind: ReduceType
) -> dict[str, Tensor]:
    read = {id(mask): read_local(mask) for mask in masks.values()}  # one object: what shares it is summarised together
    local = {name: (read_local(tensor), read[id(masks[name])]) for name, tensor in tensors.items()}
    values = {name: value for name, (value, mask) in local.items() if value is not None and mask is not None}
    over = {name: mask for name, (_, mask) in local.items() if mask is not None}
    try:
        rows = summarise_each(values, over, kind)
    except Exception:  # noqa: BLE001 - one of them cannot be read: which?
        rows = {}
        for name, value in values.items():
            problem = f"{prefix + name!r} is left out of this interval"
            rows |= attempt(f"stat:{prefix}{name}", problem, summarise_each, {name: value}, over, kind) or {}
    rows = {name: row for name, row in rows.items() if read_local(row) is not None}
    for name in tensors.keys() - rows.keys():
        report_once(f"stat:{prefix}{name}", f"{prefix + name!r} is left out of this interval: no values on this rank")
    return {prefix + name: row for name, row in rows.items()}


def _check_values(values: Tensor, mask: Tensor, name: str) -> None:
    if not isinstance(values, Tensor) or values.is_complex():
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"stat {name!r} must be a real tensor, got {got}")
    if values.shape != mask.shape:
        raise ValueError(f"stat {name!r} has shape {list(values.shape)}, the mask it belongs to {list(mask.shape)}")
