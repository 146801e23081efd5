"""Finds the routers of a model and knows what each kind puts out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Extract = Callable[[nn.Module, Any], Tensor]
"""(router, its output) → expert indices of every token, integer ``[tokens, top_k]``."""


@dataclass(frozen=True)
class Router:
    """One recognised router.

    Attributes:
        layer: global zero-based decoder layer.
        stack: the stack of layers it belongs to; empty for the main decoder.
        experts: number of routed experts.
        top_k: experts per token.
    """

    name: str
    module: nn.Module
    layer: int
    stack: str
    experts: int
    top_k: int
    extract: Extract


def indices(router: nn.Module, output: Any) -> Tensor:
    """The one integer tensor of the output whose last dimension is the router's top-k."""
    candidates = [
        value
        for value in (output if isinstance(output, tuple | list) else (output,))
        if isinstance(value, Tensor)
        and not (value.is_floating_point() or value.is_complex())
        and value.shape[-1] == router.top_k
    ]
    if len(candidates) != 1:
        raise TypeError(f"{type(router).__name__} put out {len(candidates)} tensors of expert indices instead of one")
    return candidates[0]


CONTRACTS: dict[str, Extract] = {
    "Qwen3MoeTopKRouter": indices,
    "Qwen3_5MoeTopKRouter": indices,
}
"""Class name of a router → how its output tells the chosen experts. A subclass is recognised by its base."""

_WRAPPERS = re.compile(r"(^|\.)(_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|module)(?=\.|$)")
_LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)(?:\.|$)")
_ROUTER_NAME = re.compile(r"(Router|TopKGating|MoEGate|MoeGate|GateV?\d*)$")


def find_routers(model: nn.Module) -> list[Router]:
    """The recognised routers of a model, by module name."""
    return list(_recognised(model))


def unrecognised_routers(model: nn.Module) -> list[str]:
    """Class names that look like routers and have no contract."""
    names = {type(module).__name__ for module in model.modules() if _ROUTER_NAME.search(type(module).__name__)}
    return sorted(name for name in names if name not in CONTRACTS)


def _recognised(model: nn.Module) -> Iterator[Router]:
    for name, module in model.named_modules():
        extract = next((CONTRACTS[cls.__name__] for cls in type(module).__mro__ if cls.__name__ in CONTRACTS), None)
        layer = _LAYER.search(_WRAPPERS.sub("", name))
        if extract is not None and layer is not None:
            yield Router(name, module, int(layer[1]), "", int(module.num_experts), int(module.top_k), extract)
