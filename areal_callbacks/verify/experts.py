"""What experts are given: the indices that choose them, or the rows that each of them computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from areal_callbacks.verify.totals import LayerKey


class Experts(NamedTuple):
    """The experts of one layer: one module that is given indices, or a list of modules that are given rows."""

    module: nn.Module
    layer: LayerKey
    number: int


def find_experts(model: nn.Module) -> Iterator[Experts]:
    """Every module of experts: called ``…Experts`` with weights of its own, or a list named ``experts``."""
    position = 0
    for path, module in model.named_modules(remove_duplicate=True):
        is_another = isinstance(module, nn.ModuleList) and path.rpartition(".")[2] != "experts"
        number = 0 if is_another else count_experts(module)
        if number:
            yield Experts(module, _layer_of(path, position), number)
            position += 1


def count_indices(experts: Experts, values: list[Any]) -> list[int] | None:
    """Assignments to every expert, from the matrix of indices among a call's arguments, or the vector of rows each."""
    for value in values:
        if isinstance(value, Tensor) and value.dim() >= 2 and value.dtype in (torch.int64, torch.int32):
            counts = torch.bincount(value.reshape(-1).cpu().long(), minlength=experts.number)
            return [int(count) for count in counts[: experts.number]]  # what lies beyond is another rank's, or nobody's
    vectors = [value for value in values if isinstance(value, Tensor) and value.shape == (experts.number,)]
    return [round(rows) for rows in vectors[0].tolist()] if vectors else None


def count_rows(values: list[Any]) -> int:
    """Rows of hidden states that one expert is given."""
    hidden = next(value for value in values if isinstance(value, Tensor))
    return hidden.numel() // max(hidden.shape[-1], 1)


def count_experts(module: nn.Module) -> int:
    """The number of experts that a list, or a module called ``…Experts``, holds now; 0 for other modules.

    FSDP flattens weights, so that their shape is asked only where the module does not say the number.
    """
    if isinstance(module, nn.ModuleList):
        return len(module)
    weights = list(module.parameters(recurse=False))
    if not weights or not _own_name(module).endswith("Experts"):
        return 0
    stacked = [len(weight) for weight in weights if weight.dim() == 3]
    told = getattr(module, "num_experts", 0)
    return told if isinstance(told, int) and told else max(stacked, default=0)


def _own_name(module: nn.Module) -> str:
    """FSDP2 gives a module a class of its own, whose next base is the original."""
    return next(base.__name__ for base in type(module).__mro__ if not base.__name__.startswith("FSDP"))


def _layer_of(path: str, position: int) -> LayerKey:
    found = re.search(r"(?:layers?|blocks?|h)\.(\d+)\.", f"{path}.")
    return ("encoder" if "encoder." in path else ""), int(found[1]) if found else position
