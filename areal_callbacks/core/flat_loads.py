"""Expert loads as AReaL exports them: flat metrics, some for every expert of every layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.names import MOE_BALANCE, name_layer
from areal_callbacks.core.numbers import as_number
from areal_callbacks.safety.reporting import report_once

_SERIES = re.compile(
    rf"{MOE_BALANCE}/(?:(?P<stack>.+)/)?layer_(?P<layer>\d{{1,6}})/expert_(?P<expert>\d{{1,5}})/(?P<field>.+)"
)
_IN_TABLE = ("tokens", "load_percent")


class SplitMetrics(NamedTuple):
    """What :func:`split_expert_loads` makes of metrics.

    Attributes:
        metrics: name → value of everything that is about no single expert, as given.
        loads: the counts of every layer whose ``tokens`` are whole numbers; None without any.
        series: name → number of what is about a single expert and not in ``loads``.
    """

    metrics: dict[str, Any]
    loads: ExpertLoads | None
    series: dict[str, float]


class _Layer:
    """What is known of the experts of a layer: name → (expert, field, value)."""

    def __init__(self) -> None:
        self.series: dict[str, tuple[int, str, Any]] = {}

    def counts(self) -> list[int] | None:
        """Assignments per expert, 0 where an expert has none; None unless they are whole numbers."""
        width = 1 + max(expert for expert, _, _ in self.series.values())
        tokens = {expert: as_number(value) for expert, field, value in self.series.values() if field == "tokens"}
        if not tokens or not all(_is_count(value) for value in tokens.values()):
            return None
        return [int(tokens.get(expert) or 0) for expert in range(width)]


def split_expert_loads(metrics: Mapping[str, Any]) -> SplitMetrics:
    """Take ``moe_balance/layer_<i>/expert_<j>/{tokens,load_percent,…}`` out of flat metrics.

    A layer becomes counts if its ``tokens`` are whole numbers; ``load_percent`` follows from them. Experts that are not
    named, up to the highest number, had no token. Between ``moe_balance/`` and ``layer_<i>`` the name of a stack may
    stand.

    Args:
        metrics: name → number.
    """
    layers: dict[tuple[str, int], _Layer] = {}
    rest: dict[str, Any] = {}
    for name, value in metrics.items():
        match = _SERIES.fullmatch(str(name))
        if match is None:
            rest[name] = value
        else:
            layer = layers.setdefault((match["stack"] or "", int(match["layer"])), _Layer())
            layer.series[name] = (int(match["expert"]), match["field"], value)
    loads, series = _make_loads(layers)
    return SplitMetrics(rest, loads, series)


def _make_loads(layers: Mapping[tuple[str, int], _Layer]) -> tuple[ExpertLoads | None, dict[str, float]]:
    found: list[LayerLoads] = []
    series: dict[str, float] = {}
    for (stack, number), layer in sorted(layers.items()):
        counts = layer.counts()
        if counts is None:
            name = name_layer(stack, number)
            report_once(f"loads:{name}", f"{name}: the tokens of its experts are no whole numbers: no table of them")
        else:
            found.append(LayerLoads(stack, number, torch.tensor(counts, dtype=torch.int64, device="cpu")))
        covered = () if counts is None else _IN_TABLE
        for name, (_, field, value) in layer.series.items():
            if field not in covered and (number_of := as_number(value)) is not None:
                series[name] = number_of
    return ExpertLoads(tuple(found)) if found else None, series


def _is_count(value: float | None) -> bool:
    return value is not None and 0 <= value < 2**63 and float(value).is_integer()
