"""The expert loads in the forms that trackers can show: rows of a table, single series, a chart."""

from __future__ import annotations

import heapq
import json
from typing import Any, Literal, NamedTuple

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.safety.reporting import report_once

TABLE = "moe_balance/expert_loads"
HOTTEST_TABLE = "moe_balance/hottest_experts"
MAX_SERIES = 1024

_COLUMNS = ["layer", "expert", "tokens", "load_percent"]
_BLUE, _WHITE, _RED = "#2166ac", "#f7f7f7", "#b2182b"


class LoadsBetweenTables:
    """Sums the counts until a table is due.

    Args:
        every: exports with loads from one table to the next.
    """

    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"expert_table_every must be at least 1, got {every}")
        self._every = every
        self._seen = 0
        self._sum: ExpertLoads | None = None

    def add(self, loads: ExpertLoads | None) -> ExpertLoads | None:
        """The counts since the last table, if one is due with this export; an export without loads is passed over."""
        if not loads:
            return None
        self._sum = loads if self._sum is None else self._sum.merge(loads)
        self._seen += 1
        if self._seen < self._every:
            return None
        due, self._sum, self._seen = self._sum, None, 0
        return due


class Rows(NamedTuple):
    """A table: column names, and one list per row."""

    columns: list[str]
    rows: list[list[Any]]


def expert_table(loads: ExpertLoads) -> Rows:
    """Every expert of every layer: layer, expert, tokens, load_percent, and the stack where there are several."""
    if len(loads.stacks) == 1:
        return Rows(list(_COLUMNS), [[layer, expert, tokens, load] for _, layer, expert, tokens, load in loads.rows()])
    rows = [[layer, expert, tokens, load, stack] for stack, layer, expert, tokens, load in loads.rows()]
    return Rows([*_COLUMNS, "stack"], rows)


def hottest_experts(loads: ExpertLoads, count: int = 20) -> Rows:
    """The experts with the highest ``load_over_ideal`` (1 is balanced), hottest first, columns as in the table."""
    experts = {(layer.stack, layer.layer): len(layer.counts) for layer in loads}
    table = expert_table(loads)
    ratios = [row.load_percent * experts[row.stack, row.layer] / 100 for row in loads.rows()]
    hottest = heapq.nlargest(count, range(len(ratios)), key=ratios.__getitem__)
    return Rows([*table.columns, "load_over_ideal"], [[*table.rows[index], ratios[index]] for index in hottest])


class ExpertScalars:
    """One series per expert and quantity, where there are few enough for the tracker to bear.

    Args:
        setting: True: always; False: never; ``"auto"``: up to 1,024 series, above that never, with one message.
        tracker: the tracker's name, for the message.
    """

    def __init__(self, setting: bool | Literal["auto"], tracker: str) -> None:
        self._setting = setting
        self._tracker = tracker

    def of(self, loads: ExpertLoads | None) -> dict[str, float]:
        """``{"moe_balance/layer_<id>/expert_<id>/tokens": ..., ".../load_percent": ...}``."""
        if not loads or not self._wanted(2 * sum(len(layer.counts) for layer in loads)):
            return {}
        series: dict[str, float] = {}
        for layer in loads:
            for expert, (tokens, load) in enumerate(zip(layer.counts.tolist(), layer.percentages())):
                series[f"{layer.prefix}/expert_{expert}/tokens"] = tokens
                series[f"{layer.prefix}/expert_{expert}/load_percent"] = load
        return series

    def _wanted(self, series: int) -> bool:
        if self._setting != "auto" or series <= MAX_SERIES:
            return bool(self._setting)
        report_once(
            f"per expert scalars:{self._tracker}",
            f"{series:,} series, two per expert, are too many for {self._tracker} ({MAX_SERIES:,} at most): per-expert"
            " scalars are off there; per_expert_scalars: true turns them on, metrics.jsonl has all counts",
        )
        return False


class HeatMap:
    """A layer × expert heat map of load over ideal as an ECharts option, one stack.

    Args:
        layers: of one stack, ordered by layer.
        title: shown above.
    """

    def __init__(self, layers: list[LayerLoads], title: str) -> None:
        self.option = _option(layers, title)

    def dump_options(self) -> str:
        """The option as JSON; the name is the interface of chart objects."""
        return json.dumps(self.option, separators=(",", ":"))


def heat_maps(loads: ExpertLoads) -> dict[str, HeatMap]:
    """``{"moe_balance/expert_loads": chart}`` with one chart per stack."""
    charts = {}
    for stack in loads.stacks:
        key = stack_key(TABLE, stack)
        charts[key] = HeatMap([layer for layer in loads if layer.stack == stack], key)
    return charts


def stack_key(name: str, stack: str) -> str:
    """``moe_balance/<stack>/<rest>``; the main decoder is the stack ``""`` and keeps the name."""
    scope, _, rest = name.partition("/")
    return "/".join(part for part in (scope, stack, rest) if part)


def _option(layers: list[LayerLoads], title: str) -> dict[str, Any]:
    width = max(len(layer.counts) for layer in layers)
    cells = [
        [expert, row, round(load * len(layer.counts) / 100, 4), tokens, round(load, 4)]
        for row, layer in enumerate(layers)
        for expert, (tokens, load) in enumerate(zip(layer.counts.tolist(), layer.percentages()))
    ]
    quantities = ["load / ideal", "tokens", "load percent"]
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
        "series": [
            {
                "type": "heatmap",
                "name": title,
                "dimensions": ["expert", "layer", *quantities],
                "encode": {"x": 0, "y": 1, "tooltip": [2, 3, 4]},
                "data": cells,
            }
        ],
    }
