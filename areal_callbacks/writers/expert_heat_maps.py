"""The expert loads as ECharts heat maps."""

from __future__ import annotations

import json
from typing import Any

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.names import EXPERT_LOADS, name_in_stack

_BLUE, _WHITE, _RED = "#2166ac", "#f7f7f7", "#b2182b"


class HeatMap:
    """A layer × expert heat map of load over ideal as an ECharts option, one stack.

    Args:
        layers: of one stack, ordered by layer.
        title: shown above.
    """

    def __init__(self, layers: list[LayerLoads], title: str) -> None:
        self.option = _make_option(layers, title)

    def dump_options(self) -> str:
        """The option as JSON; SwanLab calls its chart objects by this name."""
        return json.dumps(self.option, separators=(",", ":"))


def draw_heat_maps(loads: ExpertLoads) -> dict[str, HeatMap]:
    """``{"moe_balance/expert_loads": chart}`` with one chart per stack."""
    charts = {}
    for stack in loads.stacks:
        key = name_in_stack(EXPERT_LOADS, stack)
        charts[key] = HeatMap([layer for layer in loads if layer.stack == stack], key)
    return charts


def _make_option(layers: list[LayerLoads], title: str) -> dict[str, Any]:
    width = max(len(layer.counts) for layer in layers)
    return {
        "title": {"text": title, "subtext": "load / ideal: 1 is balanced"},
        "tooltip": {"position": "top"},
        "xAxis": {"type": "category", "name": "expert", "data": [str(expert) for expert in range(width)]},
        "yAxis": {"type": "category", "name": "layer", "data": [str(layer.layer) for layer in layers], "inverse": True},
        "visualMap": {
            "min": 0,
            "max": 2,
            "dimension": 2,
            "calculable": True,
            "orient": "horizontal",
            "left": "center",
            "inRange": {"color": [_BLUE, _WHITE, _RED]},
        },
        "series": [_make_series(layers, title)],
    }


def _make_series(layers: list[LayerLoads], title: str) -> dict[str, Any]:
    cells = [
        [expert, row, round(ratio, 4), tokens, round(load, 4)]
        for row, layer in enumerate(layers)
        for expert, (ratio, tokens, load) in enumerate(
            zip(layer.over_ideal(), layer.counts.tolist(), layer.percentages())
        )
    ]
    return {
        "type": "heatmap",
        "name": title,
        "dimensions": ["expert", "layer", "load / ideal", "tokens", "load percent"],
        "encode": {"x": 0, "y": 1, "tooltip": [2, 3, 4]},
        "data": cells,
    }
