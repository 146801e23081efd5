"""Routed assignments per layer and expert, counted in the routers' forward hooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.records import Records
from areal_callbacks.monitors.moe_balance.contracts import RUNNING_COUNTS
from areal_callbacks.monitors.moe_balance.counting import Counter, Gate, add_totals, count, take
from areal_callbacks.monitors.moe_balance.routers import (
    Router,
    find_routers,
    routers_without_experts,
    unrecognised_routers,
)
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.guard import Observer, guarded
from areal_callbacks.safety.hooks import ModuleHook
from areal_callbacks.safety.reporting import report_once


class MoEBalanceMonitor(Observer):
    """Counts the executed routing of training forwards, padding included.

    ===============================================  ==================================================  =============
    Key                                              Meaning                                             Reduction
    ===============================================  ==================================================  =============
    moe_balance/layer_<id>/max_over_ideal            busiest expert over the ideal load ``sum(c) / E``;  counts summed
                                                     1 is perfect, 0 an empty layer
    moe_balance/max_over_ideal_max                   the worst layer's value                             derived
    moe_balance/max_over_ideal_mean                  mean over the layers that routed anything           derived
    moe_balance/worst_layer                          global id of the worst layer                        derived
    moe_balance/dead_experts                         experts without an assignment, over all layers      derived
                                                     that routed anything
    moe_balance/layer_<id>/coefficient_of_variation  standard deviation of the loads over their mean     counts summed
    moe_balance/layer_<id>/normalised_entropy        entropy of the loads over ``log E``; 1 is perfect   counts summed
    ===============================================  ==================================================  =============

    The last two come with ``extended`` only.
    Layers of a stack beside the main decoder are ``moe_balance/<stack>/layer_<id>``. Counts are never module buffers:
    DDP would broadcast rank 0's over them.

    Args:
        forward: decides which forwards count.
        contributes_routes: False on a rank whose tokens another rank routes too.
        extended: also the coefficient of variation and the normalised entropy.
    """

    family = "moe_balance"

    def __init__(self, forward: TrainingForward, *, contributes_routes: bool = True, extended: bool = False) -> None:
        self._forward = forward
        self._gate = Gate(forward)
        self._contributes_routes = contributes_routes
        self._extended = extended
        self._routers: list[Router] = []
        self._counters: list[Counter] = []
        self._unreadable: set[int] = set()
        self._forwards = 0
        self._models: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []

    @guarded
    def attach(self, models: Iterable[nn.Module], device: torch.device) -> bool:
        """Hook every recognised router that is not hooked yet; False if there is none.

        One message names routers that cannot be counted.
        """
        models = list(models)
        self._models += models
        _report_uncounted(models)
        hooked = {id(router.module) for router in self._routers}
        for router in find_routers(self._models):
            if id(router.module) not in hooked:
                self._routers.append(router)
                self._counters.append(Counter(router.experts, _home(router.module, device)))
                self._hook(len(self._routers) - 1, router)
        self._forwards = self._forward.forwards
        return bool(self._routers)

    def _hook(self, index: int, router: Router) -> None:
        counter, gate, module = self._counters[index], self._gate.number, router.module
        read, keep = router.contract.read, self._handles.append

        def add(module: nn.Module, value: Any) -> None:
            if self.failed:
                return
            try:
                routed = read(module, value)
            except Exception as error:  # noqa: BLE001 - inside the host's forward
                self._cannot_read(index, repr(error))
                return
            if routed is None:
                self._cannot_read(index, "no tensor of expert indices or mask in its output")
            else:
                count(routed, counter, gate)

        if router.contract is RUNNING_COUNTS:
            subtract = ModuleHook(lambda part, _: add_totals(_totals(part), counter, gate, -1))
            keep(module.register_forward_pre_hook(subtract))
            # always: a forward that raises must not leave its totals subtracted
            restore = ModuleHook(lambda part, *_: add_totals(_totals(part), counter, gate, 1))
            keep(module.register_forward_hook(restore, always_call=True))
        elif router.contract.of == "arguments":
            keep(module.register_forward_pre_hook(ModuleHook(add)))
        else:  # before other hooks, which may change the output
            read_output = ModuleHook(lambda part, _, output: add(part, output))
            keep(module.register_forward_hook(read_output, prepend=True))

    def _cannot_read(self, index: int, reason: str) -> None:
        if torch.compiler.is_compiling():
            return  # a message would break the graph; collect() notices that nothing was counted
        self._unreadable.add(index)
        router = self._routers[index]
        report_once(
            f"moe_balance:unreadable:{type(router.module).__name__}",
            f"no moe_balance of {router.name} ({type(router.module).__name__}): {reason}; "
            "register_router_contract takes a function that finds the experts",
        )

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def routers(self) -> Sequence[Router]:
        """The routers that are counted."""
        return self._routers

    def collect(self) -> Records:
        """This rank's counts per layer, and start over."""
        taken = take(self._counters)
        self._notice_silence(taken)
        sums: dict[str, Tensor] = {}
        for index, (router, cells) in enumerate(zip(self._routers, taken)):
            if index in self._unreadable:
                continue
            if int(cells[-1]):
                report_once(
                    f"moe_balance:range:{type(router.module).__name__}",
                    f"{type(router.module).__name__} chose experts beyond its {router.experts}: "
                    "those assignments are left out of moe_balance",
                )
            name = f"{router.stack}/{router.layer}"
            loads = cells[1:-1] if self._contributes_routes else torch.zeros_like(cells[1:-1])
            sums[name] = _added(sums[name], loads) if name in sums else loads.clone()
        return Records(sums=sums)

    def _notice_silence(self, taken: Sequence[Tensor]) -> None:
        forwards, self._forwards = self._forward.forwards - self._forwards, self._forward.forwards
        if not forwards or not taken or any(bool(cells.any()) for cells in taken):
            return
        if any(_is_compiled(model) for model in self._models):
            cause = (
                "compiled code that ran before the metrics were attached keeps running without their hooks: attach "
                "before the first forward, or call torch._dynamo.reset() after attaching"
            )
        else:
            cause = (
                "something computes the routing without calling the router modules (a fused kernel, say): "
                "moe_balance needs the modules to be called"
            )
        report_once(
            "moe_balance:silent", f"no router was called in the training forwards since the last export; {cause}"
        )

    def expert_loads(self, reduced: Records) -> ExpertLoads | None:
        """The reduced counts as loads."""
        if not reduced.sums:
            return None
        places = sorted((name.rpartition("/")[0], int(name.rpartition("/")[2]), name) for name in reduced.sums)
        return ExpertLoads(
            tuple(LayerLoads(stack, layer, reduced.sums[name].round().long()) for stack, layer, name in places)
        )

    @guarded
    def derive(self, loads: ExpertLoads) -> dict[str, float]:
        """The scalars of the loads."""
        metrics = loads.max_over_ideal()
        if self._extended:
            for layer in loads:
                metrics[f"{layer.prefix}/coefficient_of_variation"] = layer.coefficient_of_variation
                metrics[f"{layer.prefix}/normalised_entropy"] = layer.normalised_entropy
        worst = loads.worst(1)[0]
        busy = [layer.max_over_ideal for layer in loads if layer.max_over_ideal > 0]
        metrics["moe_balance/max_over_ideal_max"] = worst.max_over_ideal
        metrics["moe_balance/max_over_ideal_mean"] = sum(busy) / len(busy) if busy else 0.0
        metrics["moe_balance/worst_layer"] = float(worst.layer)
        metrics["moe_balance/dead_experts"] = float(sum(layer.dead_experts for layer in loads))
        return metrics


def _report_uncounted(models: Iterable[nn.Module]) -> None:
    unknown = sorted({name for model in models for name in unrecognised_routers(model)})
    if unknown:
        report_once(
            "moe_balance:unsupported",
            f"no moe_balance of unsupported router class {', '.join(unknown)}; register_router_contract adds a class",
        )
    countless = sorted({name for model in models for name in routers_without_experts(model)})
    if countless:
        report_once(
            "moe_balance:experts",
            f"no moe_balance of router class {', '.join(countless)}, which does not tell its number of experts; "
            "pass experts= to register_router_contract",
        )


def _totals(module: nn.Module) -> Tensor:
    return cast("Tensor", RUNNING_COUNTS.read(module, None))


def _home(module: nn.Module, device: torch.device) -> torch.device:
    """Where a router runs: where an accelerator holds its parameters, else (they may be offloaded) as the rest."""
    own = next((parameter.device for parameter in module.parameters()), device)
    if own.type not in ("cpu", "meta"):
        return own
    return torch.device("cpu") if device.type == "meta" else device


def _added(first: Tensor, second: Tensor) -> Tensor:
    """The sum of two counts of one layer; the narrower is filled up."""
    width = max(len(first), len(second))
    return nn.functional.pad(first, (0, width - len(first))) + nn.functional.pad(second, (0, width - len(second)))


def _is_compiled(model: nn.Module) -> bool:
    return any(
        module._compiled_call_impl is not None or hasattr(module, "_torchdynamo_orig_callable")
        for module in model.modules()
    ) or any(type(module).__name__ == "OptimizedModule" for module in model.modules())
