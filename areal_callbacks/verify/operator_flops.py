"""FLOPs of the operators that run, by torch's own formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from areal_callbacks.verify.calls import list_calls
from areal_callbacks.verify.gradient_state import GradientState


def has_formula(function: Any) -> bool:
    """Whether torch knows the FLOPs of an operator."""
    return function.overloadpacket in flop_registry


def count_flops(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of one call of an operator (2 for a multiplication and addition), by torch's ``FlopCounterMode``."""
    return int(flop_registry[function.overloadpacket](*args, **kwargs, out_val=result))


def belongs_to_training(state: GradientState) -> bool:
    """Whether an operator is part of a training forward or of a backward, and not of a recomputation."""
    if list_calls():
        return state.trains()
    return torch._C._current_graph_task_id() != -1 and not state.recomputes()
