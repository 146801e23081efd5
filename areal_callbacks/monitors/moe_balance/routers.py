"""Finds the routers of a model."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn

from areal_callbacks.monitors.moe_balance import layer_names
from areal_callbacks.monitors.moe_balance.contracts import (
    CONTRACTS,
    EXPERTS,
    INDEX,
    RUNNING_COUNTS,
    Contract,
    is_number_of_experts,
    setting,
    top_k_of,
)
from areal_callbacks.monitors.moe_balance.gates import Gate, find_gates
from areal_callbacks.safety.attributes import read_attribute

__all__ = ["Router", "find_routers", "find_routers_without_experts", "find_unrecognised_routers"]

_ROUTER_NAME = re.compile(r"(?:Router(?:V\d+)?|TopKGating|MoEGate|MoeGate|MoEV\dGate)$")
_NAMED_TOP_K = re.compile(r"Top(\d+)")


@dataclass(frozen=True)
class Router:
    """One recognised router, which this does not keep.

    Attributes:
        name: of its module.
        reference: to what is hooked: the router itself, or the experts that it feeds.
        contract: how it tells what it chose.
        layer: global zero-based decoder layer.
        stack: the stack of layers it belongs to; empty for the main decoder.
        experts: number of routed experts.
        top_k: experts per token; None where the module does not tell.
    """

    name: str
    reference: weakref.ref[nn.Module]
    contract: Contract
    layer: int
    stack: str
    experts: int
    top_k: int | None

    @property
    def module(self) -> nn.Module:
        """What is hooked; asked for while it lives."""
        return cast("nn.Module", self.reference())


def find_routers(model: nn.Module | Sequence[nn.Module]) -> list[Router]:
    """The recognised routers of a model or of its parts, in module order, every module once.

    Different modules that would share a layer of a stack are told apart by name; copies of one module that a wrapper
    keeps (PEFT's ``modules_to_save``) share it.
    """
    parts = [model] if isinstance(model, nn.Module) else list(model)
    seen: set[int] = set()
    found: list[tuple[int, str, Router]] = []
    for number, part in enumerate(parts):
        modules = dict(part.named_modules())
        has_decoder = layer_names.has_decoder(modules)
        for name, module, contract in _find_recognised(part):
            place = layer_names.find_place(name, has_decoder=has_decoder, layer=_own_layer(module))
            experts = _experts(module, contract)
            if id(module) in seen or place is None or experts is None or read_attribute(module, "is_mtp_layer"):
                continue
            seen.add(id(module))
            top_k = _top_k(module) or _top_k(modules[name.rpartition(".")[0]])
            router = Router(name, weakref.ref(module), contract, place.layer, place.stack, experts, top_k)
            found.append((number, place.path, router))
    return _tell_apart(found)


def find_routers_without_experts(model: nn.Module) -> list[str]:
    """Class names of routers that have a contract, but no number of experts, so that they cannot be counted."""
    routers = [
        (type(module).__name__, name)
        for name, module, contract in _find_recognised(model)
        if not _experts(module, contract)
    ]
    return sorted({class_name for class_name, name in routers if _in_balance(name)})


def find_unrecognised_routers(model: nn.Module) -> list[str]:
    """Class names that look like routers of experts and cannot be counted, nor anything beside them in their block."""
    recorded = _find_recorded_classes(model)
    counted = [name for name, _, _ in _find_recognised(model)]
    names: set[str] = set()
    for name, module in model.named_modules():
        block = name[: name.rfind(".") + 1] or f"{name}."
        is_router = _looks_like_router(module, recorded) and _in_balance(name)
        if is_router and name not in counted and not any(other.startswith(block) for other in counted):
            names.add(type(module).__name__)
    return sorted(names)


def expert_count(module: nn.Module) -> int | None:
    """Routed experts of a router; the larger number where there are experts without weights."""
    counts = [value for name in EXPERTS if (value := setting(module, (name,))) is not None]
    if counts:
        own = [value for name in EXPERTS if isinstance(value := read_attribute(module, name), int)]
        return max(own or counts)
    totals = read_attribute(module, "routing_counts")
    return totals.numel() if isinstance(totals, Tensor) else None


def _experts(module: nn.Module, contract: Contract) -> int | None:
    given = contract.experts(module) if callable(contract.experts) else contract.experts
    return given if is_number_of_experts(given) else expert_count(module)


def _in_balance(name: str) -> bool:
    return layer_names.find_place(name, has_decoder=False) is not None


def _find_recognised(model: nn.Module) -> Iterator[tuple[str, nn.Module, Contract]]:
    recorded, gates = _find_recorded_classes(model), list(find_gates(model))
    found = {
        name: (module, contract)
        for name, module in model.named_modules()
        if (contract := _contract(module, recorded)) and not (contract is INDEX and _is_block(module, name, gates))
    }
    counting = [name for name, (module, _) in found.items() if not _forwards_to_router(module, name, found)]
    yield from ((name, *found[name]) for name in counting)
    for gate in gates:
        if not any(gate.name == name or name.startswith(gate.block) for name in counting):
            yield gate.name, gate.module, gate.contract
            counting.append(gate.name)
    for name, module in model.named_modules():
        totals = read_attribute(module, "routing_counts")
        is_counted = any(other.startswith(f"{name}.") or other == name for other in counting)
        if isinstance(totals, Tensor) and not is_counted and not _forwards_totals(module, totals):
            yield name, module, RUNNING_COUNTS


def _is_block(module: nn.Module, name: str, gates: Sequence[Gate]) -> bool:
    """A block around a gate, which releases of Transformers before 5 declare as the source of ``router_logits``."""
    return not _is_named(module) and any(gate.block == f"{name}." for gate in gates)


def _forwards_to_router(module: nn.Module, name: str, found: Mapping[str, tuple[nn.Module, Contract]]) -> bool:
    """A wrapper that looks like the router inside, because it forwards attributes."""
    if not any(other.startswith(f"{name}.") for other in found):
        return False
    own = {*vars(module), *dir(type(module))}
    return not any(attribute in own for attribute in EXPERTS)


def _forwards_totals(module: nn.Module, totals: Tensor) -> bool:
    """The buffer is that of a module inside, of which this one forwards the attributes."""
    return any(read_attribute(inner, "routing_counts") is totals for inner in module.modules() if inner is not module)


def _contract(module: nn.Module, recorded: tuple[type, ...]) -> Contract | None:
    known = next((cls.__name__ for cls in type(module).__mro__ if cls.__name__ in CONTRACTS), None)
    if known is not None:
        return CONTRACTS[known]
    tells = _top_k(module) is not None and expert_count(module) is not None
    return INDEX if tells and _looks_like_router(module, recorded) else None


def _looks_like_router(module: nn.Module, recorded: tuple[type, ...]) -> bool:
    named = _is_named(module) and expert_count(module) is not None
    return named or (bool(recorded) and isinstance(module, recorded))


def _is_named(module: nn.Module) -> bool:
    """Like a router; fully_shard gives a module a class of its own, below the original one."""
    return any(_ROUTER_NAME.search(cls.__name__) for cls in type(module).__mro__)


def _find_recorded_classes(model: nn.Module) -> tuple[type, ...]:
    """What the models in it declare as the sources of their ``router_logits``."""
    classes: dict[type, None] = {}
    for module in model.modules():
        declared = read_attribute(module, "_can_record_outputs")
        recorders = declared.get("router_logits") if isinstance(declared, dict) else None
        for recorder in recorders if isinstance(recorders, list | tuple) else [recorders]:
            target = getattr(recorder, "target_class", recorder)
            if isinstance(target, type) and not issubclass(target, nn.Linear):  # any layer would look like one
                classes[target] = None
    return tuple(classes)


def _top_k(module: nn.Module) -> int | None:
    told = top_k_of(module)
    named = _NAMED_TOP_K.search(type(module).__name__)
    return told if told is not None or named is None else int(named[1])


def _own_layer(module: nn.Module) -> int | None:
    """Megatron numbers layers from 1, globally over pipeline stages, whose module names are local."""
    number = read_attribute(module, "layer_number")
    return number - 1 if isinstance(number, int) else None


def _tell_apart(found: list[tuple[int, str, Router]]) -> list[Router]:
    sizes: dict[tuple[str, str], int] = {}
    for _, path, router in found:  # of paths that share a layer, the longest stack of the earliest part keeps its name
        sizes[router.stack, path] = sizes.get((router.stack, path), 0) + 1
    owners: dict[tuple[str, int], tuple[int, str]] = {}
    renamed: dict[int, Router] = {}
    for number, path, router in sorted(found, key=lambda item: (item[0], -sizes[item[2].stack, item[1]])):
        owner = owners.setdefault((router.stack, router.layer), (number, path))
        if owner == (number, path):
            renamed[id(router)] = router
        else:
            stack = layer_names.name_apart(router.stack, path, owner[1], number)
            renamed[id(router)] = replace(router, stack=stack)
    return [renamed[id(router)] for _, _, router in found]
