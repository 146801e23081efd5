"""Routed assignments per layer and expert, counted in the routers' forward hooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.guard import Observer, guarded
from areal_callbacks.core.records import Records
from areal_callbacks.core.reporting import report_once
from areal_callbacks.monitors.counting import Gate, count_ids
from areal_callbacks.monitors.routers import Router, find_routers, unrecognised_routers
from areal_callbacks.monitors.training_forward import TrainingForward


class MoEBalanceMonitor(Observer):
    """Counts the executed routing of training forwards, padding included.

    =======================================  ==========================================================  ==================
    Key                                      Meaning                                                     Reduction
    =======================================  ==========================================================  ==================
    moe_balance/layer_<id>/max_over_ideal    busiest expert over the ideal load ``sum(c) / E``; 1 is     counts summed, then
                                             perfect, 0 an empty layer                                   derived
    moe_balance/max_over_ideal_max           the worst layer's value                                     derived
    moe_balance/max_over_ideal_mean          mean over the layers that routed anything                   derived
    moe_balance/worst_layer                  global id of the worst layer                                derived
    moe_balance/dead_experts                 experts without an assignment, over all layers              derived
    =======================================  ==========================================================  ==================

    Counts live in one int64 ``[layers, experts]`` tensor on the routers' device, never in a module buffer (DDP would
    broadcast rank 0's over it).

    Args:
        forward: decides which forwards count.
        contributes_routes: False on a rank whose tokens another rank routes too.
    """

    family = "moe_balance"

    def __init__(self, forward: TrainingForward, *, contributes_routes: bool = True, extended: bool = False) -> None:
        self._gate = Gate(forward)
        self._contributes_routes = contributes_routes
        self._extended = extended
        self._routers: list[Router] = []
        self._counts: Tensor | None = None
        self._handles: list[RemovableHandle] = []

    def attach(self, models: Iterable[nn.Module], device: torch.device) -> bool:
        """Hook every recognised router; False, with one message for a mixture-of-experts model, if there is none."""
        models = list(models)
        self._routers = [router for model in models for router in find_routers(model)]
        if not self._routers:
            unknown = sorted({name for model in models for name in unrecognised_routers(model)})
            if unknown:
                report_once("moe_balance:unsupported", f"no moe_balance: unsupported router class {', '.join(unknown)}")
            return False
        width = max(router.experts for router in self._routers)
        self._counts = torch.zeros(len(self._routers), width, dtype=torch.int64, device=device)
        for row, router in zip(self._counts, self._routers):
            self._handles.append(router.module.register_forward_hook(self._hook(router, row[: router.experts])))
        return True

    def _hook(self, router: Router, counts: Tensor) -> Any:
        extract, gate = router.extract, self._gate

        def count(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
            if self.failed:
                return
            try:
                count_ids(extract(module, output), counts, gate)
            except TypeError as error:
                self.fail(error)

        return count

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
        if self._counts is None:
            return Records()
        counts = self._counts.to("cpu", copy=True) if self._contributes_routes else torch.zeros_like(self._counts, device="cpu")
        self._counts.zero_()
        sums: dict[str, Tensor] = {}
        for row, router in zip(counts, self._routers):
            name = f"{router.stack}/{router.layer}"
            loads = row[: router.experts]
            sums[name] = sums[name] + loads if name in sums else loads.clone()
        return Records(sums=sums)

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


