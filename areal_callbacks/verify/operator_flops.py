"""FLOPs of the operators that run, by torch's own formulas and two that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from areal_callbacks.verify.calls import list_calls
from areal_callbacks.verify.gradient_state import GradientState


def has_formula(function: Any) -> bool:
    """Whether the FLOPs of an operator are known."""
    return function.overloadpacket in flop_registry or function.overloadpacket in _FURTHER


def count_flops(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of one call of an operator: 2 for a multiplication and addition, as torch's ``FlopCounterMode`` counts."""
    packet = function.overloadpacket
    if packet in _FURTHER:
        return _FURTHER[packet](*args)
    return int(flop_registry[packet](*args, **kwargs, out_val=result))


def belongs_to_training(state: GradientState) -> bool:
    """Whether an operator is part of a training forward or of a backward, and not of a recomputation."""
    if list_calls():
        return state.trains()
    return torch._C._current_graph_task_id() != -1 and not state.recomputes()


def _grouped(left: Tensor, right: Tensor, *_: Any) -> int:
    """``[M, K]`` by ``[E, K, N]``, or for the weights' gradient ``[K, M]`` by ``[M, N]``: every row meets one group."""
    return 2 * left.shape[-2] * left.shape[-1] * right.shape[-1]


def _attend(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attend_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    shapes = [part.shape for part in (gradient, query, key, value)]
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _list_further() -> dict[Any, Callable[..., int]]:
    """What this release of torch has of the operators without a formula."""
    formulas: dict[str, Callable[..., int]] = {
        "_grouped_mm": _grouped,
        "_scaled_dot_product_flash_attention_for_cpu": _attend,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attend_backward,
    }
    return {
        getattr(torch.ops.aten, name): formula for name, formula in formulas.items() if hasattr(torch.ops.aten, name)
    }


_FURTHER = _list_further()
