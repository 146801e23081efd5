"""Routed assignments per layer and expert, counted in the routers' forward hooks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from areal_callbacks.core import names
from areal_callbacks.core.balance import quantile
from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.records import Records
from areal_callbacks.monitors.moe_balance.choices import Block, Choices
from areal_callbacks.monitors.moe_balance.counted_router import HINT, CountedRouter
from areal_callbacks.monitors.moe_balance.counting import CountingSwitch, take
from areal_callbacks.monitors.moe_balance.routers import (
    Router,
    find_routers,
    find_routers_without_experts,
    find_unrecognised_routers,
)
from areal_callbacks.monitors.moe_balance.uncalled import UncalledRouters
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.reporting import report_once

_FORWARDS = "forwards"


class MoEBalanceMonitor(Observer):
    """Counts the executed routing of training forwards, padding included.

    ===============================================  ==================================================  =============
    Key                                              Meaning                                             Reduction
    ===============================================  ==================================================  =============
    moe_balance/layer_<id>/max_over_ideal            busiest expert over the ideal load ``sum(c) / E``;  counts summed
                                                     1 is perfect, 0 an empty layer
    moe_balance/max_over_ideal_max                   the worst layer's value                             derived
    moe_balance/max_over_ideal_mean                  mean over the layers that routed anything           derived
    moe_balance/max_over_ideal_p50                   median over the layers that routed anything         derived
    moe_balance/max_over_ideal_p90                   the ninth decile over them                          derived
    moe_balance/worst_layer                          global id of the worst layer                        derived
    moe_balance/dead_experts                         experts without an assignment, over all layers      derived
                                                     that routed anything
    moe_balance/starved_experts                      those with less than a tenth of the ideal load,     derived
                                                     dead ones among them
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
        self._switch = CountingSwitch(forward)
        self._contributes_routes = contributes_routes
        self._extended = extended
        self._choices = Choices()
        self._blocks: dict[int, Block] = {}
        self._counted: list[CountedRouter] = []
        self._forwards = 0
        self._models: list[weakref.ref[nn.Module]] = []  # in their order
        self._uncalled = UncalledRouters()

    def attach(self, models: Iterable[nn.Module], device: torch.device) -> bool:
        """Hook every recognised router that is not hooked yet; False if there is none.

        One message names routers that cannot be counted.
        """
        models = list(models)
        self._models += map(weakref.ref, models)
        _report_uncounted(models)
        hooked = {id(router.module) for router in self.routers}
        for router in find_routers(self._living()):
            if id(router.module) not in hooked:
                self._counted.append(self._hook(router, device))
        if self._counted and self._choices.end_forward not in self._forward.at_end:
            self._forward.at_end.append(self._choices.end_forward)
        self._forwards = self._forward.forwards
        return bool(self._counted)

    def _living(self) -> list[nn.Module]:
        return [model for reference in self._models if (model := reference()) is not None]

    def _hook(self, router: Router, device: torch.device) -> CountedRouter:
        block = self._blocks.setdefault(router.experts, Block(router.experts))
        number = self._switch.number
        return CountedRouter(router, device, forward=self._forward, switch=number, choices=self._choices, block=block)

    def detach(self) -> None:
        for counted in self._counted:
            counted.detach()
        self._counted.clear()
        self._choices.forget()
        self._blocks.clear()
        if self._choices.end_forward in self._forward.at_end:
            self._forward.at_end.remove(self._choices.end_forward)
        self._models.clear()

    @property
    def routers(self) -> Sequence[Router]:
        """The routers that are counted."""
        return [counted.router for counted in self._counted]

    def collect(self) -> Records:
        """This rank's counts per layer, and start over."""
        chosen = self._take()
        sums: dict[str, Tensor] = {}
        for counted, cells in chosen:
            counted.check()
            if not counted.failed:
                counted.report_out_of_range(cells)
                loads = cells[1:-1] if self._contributes_routes else torch.zeros_like(cells[1:-1])
                name = f"{counted.router.stack}/{counted.router.layer}"
                sums[name] = _add_counts(sums[name], loads) if name in sums else loads.clone()
        forwards, self._forwards = self._forward.forwards - self._forwards, self._forward.forwards
        if forwards:
            self._uncalled.report(chosen, self._living())
        return Records(sums=sums, maxima={_FORWARDS: torch.tensor([forwards], dtype=torch.float64, device="cpu")})

    def _take(self) -> list[tuple[CountedRouter, Tensor]]:
        """Every router with its cells since the last call, int64 ``[experts + 2]``."""
        self._choices.count()
        blocks = list(self._blocks.values())
        taken = iter(take([*blocks, *(counter for counted in self._counted for counter in counted.counters)]))
        rows = {block: block.split(next(taken)) for block in blocks}
        parts = [(counted, [next(taken) for _ in counted.counters]) for counted in self._counted]
        for counted, cells in parts:
            cells[0] += rows[counted.row.block][counted.row.number]
        chosen = [(counted, counted.choose(cells)) for counted, cells in parts]
        holding = {counted.kind for counted in self._counted if counted.holds_last}
        for index, (counted, cells) in enumerate(parts):  # what one module of a class shows holds for the others
            if not counted.holds_last and counted.kind in holding and len(cells) > 1:
                counted.holds_last = True
                chosen[index] = (counted, counted.choose(cells))
        return chosen

    def expert_loads(self, reduced: Records) -> ExpertLoads | None:
        """The reduced counts as loads; None without routers, and of an interval without a training forward."""
        if not reduced.sums or not reduced.maxima[_FORWARDS].any():
            return None
        places = sorted((name.rpartition("/")[0], int(name.rpartition("/")[2]), name) for name in reduced.sums)
        return ExpertLoads(
            tuple(LayerLoads(stack, layer, reduced.sums[name].round().long()) for stack, layer, name in places)
        )

    def derive(self, loads: ExpertLoads) -> dict[str, float]:
        """The scalars of the loads."""
        ratios = [layer.max_over_ideal for layer in loads]
        metrics = {names.name_max_over_ideal(layer.stack, layer.layer): ratio for layer, ratio in zip(loads, ratios)}
        if self._extended:
            for layer in loads:
                metrics[f"{layer.prefix}/coefficient_of_variation"] = layer.coefficient_of_variation
                metrics[f"{layer.prefix}/normalised_entropy"] = layer.normalised_entropy
        highest, busy = max(ratios), [ratio for ratio in ratios if ratio > 0]
        metrics[names.MAX_OVER_IDEAL_MAX] = highest
        metrics[names.MAX_OVER_IDEAL_MEAN] = sum(busy) / len(busy) if busy else 0.0
        for percent in (50, 90) if busy else ():
            metrics[f"{names.MOE_BALANCE}/{names.MAX_OVER_IDEAL}_p{percent}"] = quantile(busy, percent / 100)
        metrics[names.WORST_LAYER] = float(loads.layers[ratios.index(highest)].layer)
        metrics[names.DEAD_EXPERTS] = float(sum(layer.dead_experts for layer in loads))
        metrics[names.STARVED_EXPERTS] = float(sum(layer.starved_experts for layer in loads))
        return metrics


def _report_uncounted(models: Iterable[nn.Module]) -> None:
    unknown = sorted({name for model in models for name in find_unrecognised_routers(model)})
    if unknown:
        report_once(
            "moe_balance:unsupported",
            f"no moe_balance of unsupported router class {', '.join(unknown)}; {HINT}",
        )
    countless = sorted({name for model in models for name in find_routers_without_experts(model)})
    if countless:
        report_once(
            "moe_balance:experts",
            f"no moe_balance of router class {', '.join(countless)}, which does not tell its number of experts; "
            "pass experts= to register_router_contract",
        )


def _add_counts(first: Tensor, second: Tensor) -> Tensor:
    """The sum of two counts of one layer; the narrower is filled up."""
    width = max(len(first), len(second))
    return nn.functional.pad(first, (0, width - len(first))) + nn.functional.pad(second, (0, width - len(second)))
