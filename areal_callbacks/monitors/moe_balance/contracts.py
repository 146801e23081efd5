"""How the routers of different libraries tell which experts they chose."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn

Read = Callable[[nn.Module, Any], Tensor | None]
"""(router, its output) → what it chose: integers are expert indices ``[..., top_k]``, negative where a token is not
routed; anything else is a mask or scores ``[..., experts]``, nonzero where chosen. None: not in this output."""

Experts = int | Callable[[nn.Module], int]
"""A number of experts, or the function of a router that tells it."""

_TOP_K = (
    *("top_k", "topk", "num_experts_per_tok", "top_k_experts", "moe_top_k"),
    *("n_expert_per_token", "experts_per_token"),  # litgpt, torchtune
)
EXPERTS = (
    *("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts", "moe_num_experts"),
    *("n_expert", "n_exp"),  # litgpt, nanoMoE
)
"""Names under which routers and configurations hold the number of routed experts."""
_KEPT = "selected_experts_indices"
"""Where torchtune's router keeps its choice, of which it puts out the counts alone."""


class Contract(NamedTuple):
    """One way to tell.

    Attributes:
        name: for people.
        read: finds the choice, in a few Python steps and without waiting for the device.
        of: what ``read`` is given: the module's output, or its positional arguments.
        experts: the number of routed experts, for routers without an attribute that holds it.
        given_to: references to modules, one for each expert, of which one call shows whether ``read`` is right.
    """

    name: str
    read: Read
    of: str = "output"
    experts: Experts | None = None
    given_to: tuple[weakref.ref[nn.Module], ...] = ()


def local(value: Tensor | None) -> Tensor | None:
    """This rank's part of a distributed tensor; anything else as it is."""
    if value is None or type(value) is Tensor or not hasattr(value, "to_local"):
        return value
    return cast("Tensor", value.to_local())


def setting(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """The first integer under one of these names, of the module or of its configuration; a property may raise."""
    try:
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, int):
                return value
        config = getattr(module, "config", None)
        return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)
    except Exception:  # noqa: BLE001 - then there is no such number
        return None


def expert_indices(router: nn.Module, output: Any) -> Tensor | None:
    """The one integer tensor whose last dimension is the router's top-k, else the one boolean tensor of the output.

    Told by dtype and shape, so that it does not matter where in the output a library puts it. Else what the router
    keeps of this forward.
    """
    top_k = setting(router, _TOP_K)
    found: Tensor | None = None
    mask: Tensor | None = None
    for value in output if isinstance(output, tuple | list) else (output,):
        dtype = value.dtype if isinstance(value, Tensor) else torch.float32
        if dtype.is_floating_point or value.dim() < 2:
            continue
        if dtype == torch.bool:
            mask = _over_experts(value, setting(router, EXPERTS)) if mask is None else None
        elif value.shape[-1] == top_k:
            if found is not None:
                return None
            found = value
    told = mask if found is None else found
    return local(getattr(router, _KEPT, None) if told is None else told)


def _over_experts(mask: Tensor, experts: int | None) -> Tensor:
    """``[tokens, experts]``, also of a mask ``[tokens, experts, capacity]`` with the place in the expert's batch."""
    return mask.any(-1) if mask.dim() == 3 and mask.shape[-1] != experts and mask.shape[-2] == experts else mask


class IndexPlace:
    """Reads :func:`expert_indices` where the last output of a router had them, if it still has the same form there."""

    def __init__(self) -> None:
        self._length, self._place = -1, 0
        self._dtype: torch.dtype | None = None
        self._width = 0

    def read(self, router: nn.Module, output: Any) -> Tensor | None:
        """See :func:`expert_indices`."""
        if type(output) is tuple and len(output) == self._length:
            value = output[self._place]
            if type(value) is Tensor and value.dtype is self._dtype and value.dim() and value.shape[-1] == self._width:
                return value
        return self._find(router, output)

    def _find(self, router: nn.Module, output: Any) -> Tensor | None:
        found = expert_indices(router, output)
        if found is not None and type(output) is tuple:
            places = [place for place, value in enumerate(output) if value is found]
            self._length = len(output) if places else -1
            self._place, self._dtype, self._width = sum(places[:1]), found.dtype, found.shape[-1]
        return found


def _one_hot(router: nn.Module, output: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG001
    return output[0] != 0


def _first_scores(router: nn.Module, output: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG001
    return output[0].detach()


def _second_scores(router: nn.Module, output: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG001
    return output[1].detach()


def _last_logits(router: nn.Module, output: tuple[Tensor, ...]) -> Tensor:
    return output[-1].detach().topk(cast("int", router.top_k), dim=-1).indices


def _without_skipped(router: nn.Module, output: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG001
    return output[2].masked_fill(output[1] == 0, -1)


def _second_argument(experts: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor | None:  # noqa: ARG001
    return arguments[1] if len(arguments) > 1 else None


def _running_counts(module: nn.Module, _: Any) -> Tensor | None:
    return local(cast("Tensor", module.routing_counts))


INDEX = Contract("index", expert_indices)
RUNNING_COUNTS = Contract("running counts", _running_counts)
"""A module with a buffer ``routing_counts`` ``[experts]``, which grows or holds the counts of the last forward."""

CONTRACTS: dict[str, Contract | None] = {
    "TopKRouter": Contract("mask", expert_indices),  # Megatron: probabilities and a boolean routing map, after drops
    "SwitchTransformersTop1Router": Contract("mask", _one_hot),  # an integer mask, after capacity
    "Llama4Router": Contract("dense scores", _first_scores),  # sigmoid(-inf) = 0 elsewhere
    "NllbMoeTop2Router": Contract("dense scores", _second_scores),  # combine weights, after capacity
    "JetMoeTopKGating": Contract("top-k of logits", _last_logits),  # its integers are permutations
    "ZayaRouter": Contract("index", _without_skipped),  # skipped tokens read as expert 0 with probability 0
    "DbrxExperts": Contract("experts' input", _second_argument, of="arguments"),  # its router puts out logits only
    "DbrxRouter": None,
    "DogeCDMoE": None,  # retrieves from product keys inside its forward: no output tells the experts
}
"""Class name → contract where dtype and shape do not tell; None: not countable by this class. Subclasses inherit."""


def register_router_contract(
    class_name: str,
    extract: Callable[[nn.Module, Any], Tensor],
    *,
    experts: Experts | None = None,
    replace: bool = False,
) -> None:
    """Count the routers of a class of your own; call it before the metrics are attached to a model.

    ::

        register_router_contract("MyRouter", lambda router, output: output["expert_ids"])
        register_router_contract("Gate", lambda gate, logits: logits.topk(2).indices, experts=lambda gate: gate.n_out)

    Args:
        class_name: of the router; its subclasses are counted, too.
        extract: given the router and its output, returns the chosen experts: integer indices ``[..., top_k]``, negative
            where a token is not routed, or a mask ``[..., experts]`` that is nonzero where an expert is chosen. Called
            in every forward, also while ``torch.compile`` traces: it must not wait for the device.
        experts: the number of routed experts, or a function of the router that returns it. By default the router holds
            it as ``num_experts``, ``n_routed_experts`` or ``num_local_experts``, itself or in its ``config``.
        replace: allow a class name that has a contract.

    Raises:
        ValueError: not a class name, one that has a contract already, or fewer than one expert.
        TypeError: ``extract`` cannot be called, or ``experts`` is neither an integer nor a function.
    """
    if not class_name.isidentifier():
        raise ValueError(f"class_name: expected the bare name of a class, got {class_name!r}")
    if not callable(extract):
        raise TypeError(f"extract: expected a function of the router and its output, got {extract!r}")
    if not (experts is None or callable(experts) or is_number_of_experts(experts)):
        raise _refuse_experts(experts)
    if class_name in CONTRACTS and not replace:
        raise ValueError(f"class_name: {class_name!r} has a contract already; pass replace=True to overrule it")
    CONTRACTS[class_name] = Contract("registered", extract, experts=experts)


def is_number_of_experts(value: object) -> TypeGuard[int]:
    """An integer of at least 1, which a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _refuse_experts(experts: object) -> Exception:
    problem = f"experts: expected an integer of at least 1 or a function of the router, got {experts!r}"
    is_integer = isinstance(experts, int) and not isinstance(experts, bool)
    return ValueError(problem) if is_integer else TypeError(problem)


def top_k_of(module: nn.Module) -> int | None:
    """Experts per token, if the router tells."""
    return setting(module, _TOP_K)
