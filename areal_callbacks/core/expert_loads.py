"""How the routed assignments spread over the experts of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.core import balance
from areal_callbacks.core.names import name_layer, name_max_over_ideal


class ExpertRow(NamedTuple):
    """One row of the expert table. ``load_percent`` sums to 100 over a non-empty layer and is 0 in an empty one."""

    stack: str
    layer: int
    expert: int
    tokens: int
    load_percent: float


class LayerLoads(NamedTuple):
    """The counts of one layer: ``counts`` is int64 ``[experts]`` on the CPU, ``layer`` global and zero-based."""

    stack: str
    layer: int
    counts: Tensor

    @property
    def prefix(self) -> str:
        """``moe_balance/layer_<id>``, with the stack between for all but the main decoder (stack ``""``)."""
        return name_layer(self.stack, self.layer)

    @property
    def max_over_ideal(self) -> float:
        """``max(c) / (sum(c) / E)``: 1 is perfect balance, E a single busy expert; 0 for an empty layer."""
        return balance.max_over_ideal(self.counts.tolist())

    @property
    def dead_experts(self) -> int:
        """Experts without a single assignment, in a layer that had some; 0 for an empty layer."""
        return int((self.counts == 0).sum()) if bool(self.counts.any()) else 0

    @property
    def starved_experts(self) -> int:
        """Experts with less than a tenth of the ideal load, dead ones among them; 0 for an empty layer."""
        return balance.count_starved(self.counts.tolist())

    @property
    def coefficient_of_variation(self) -> float:
        """Population standard deviation of the counts over their mean; 0 for an empty layer."""
        mean = float(self.counts.double().mean())
        return float(self.counts.double().std(correction=0)) / mean if mean else 0.0

    @property
    def normalised_entropy(self) -> float:
        """Entropy (Shannon 1948) of the loads over ``log E``: 1 is perfect balance, 0 one busy or no expert."""
        total = int(self.counts.sum())
        if not total or len(self.counts) == 1:
            return 0.0
        loads = self.counts[self.counts > 0].double() / total
        return float(-(loads * loads.log()).sum()) / math.log(len(self.counts))

    def percentages(self) -> list[float]:
        """Expert load percentages, ``100 * c / sum(c)``."""
        return balance.load_percentages(self.counts.tolist())

    def over_ideal(self) -> list[float]:
        """The load of every expert over the ideal one, ``c / (sum(c) / E)``; zeros for an empty layer."""
        return [percent * len(self.counts) / 100 for percent in self.percentages()]


@dataclass(frozen=True)
class ExpertLoads:
    """Routed assignments per (stack, layer, expert), summed over ranks before anything is normalised.

    Layers may have different numbers of experts and lie in several stacks (encoder and decoder, say). They are kept
    ordered by stack, then layer id; the main decoder is the stack ``""``.
    """

    layers: tuple[LayerLoads, ...]

    def __iter__(self) -> Iterator[LayerLoads]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def stacks(self) -> list[str]:
        """The stacks that occur, in order."""
        return list(dict.fromkeys(layer.stack for layer in self.layers))

    def rows(self) -> Iterator[ExpertRow]:
        """Every (layer, expert) as one row, layer by layer, experts in their fixed order."""
        for layer in self.layers:
            for expert, (tokens, percent) in enumerate(zip(layer.counts.tolist(), layer.percentages())):
                yield ExpertRow(layer.stack, layer.layer, expert, tokens, percent)

    def max_over_ideal(self) -> dict[str, float]:
        """``{"moe_balance/layer_<id>/max_over_ideal": ratio}`` for every layer."""
        return {name_max_over_ideal(layer.stack, layer.layer): layer.max_over_ideal for layer in self.layers}

    def worst(self, count: int = 3) -> list[LayerLoads]:
        """The most imbalanced layers, worst first."""
        return sorted(self.layers, key=lambda layer: -layer.max_over_ideal)[:count]

    def merge(self, other: ExpertLoads) -> ExpertLoads:
        """The loads of both intervals together; a layer that one of them lacks is taken from the other."""
        merged = {(layer.stack, layer.layer): layer for layer in self.layers}
        for layer in other.layers:
            mine = merged.get((layer.stack, layer.layer))
            merged[layer.stack, layer.layer] = layer if mine is None else _add(mine, layer)
        return ExpertLoads(tuple(merged[key] for key in sorted(merged)))


def _add(first: LayerLoads, second: LayerLoads) -> LayerLoads:
    if len(first.counts) != len(second.counts):
        raise ValueError(f"{first.prefix} has {len(first.counts)} experts and {len(second.counts)}")
    return LayerLoads(first.stack, first.layer, torch.add(first.counts, second.counts))
