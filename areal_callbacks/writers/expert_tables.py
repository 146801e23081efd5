"""The expert loads as rows of a table."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from areal_callbacks.core.expert_loads import ExpertLoads

_COLUMNS = ["layer", "expert", "tokens", "load_percent"]


class Table(NamedTuple):
    """Column names, and one list per row."""

    columns: list[str]
    rows: list[list[Any]]


def make_expert_table(loads: ExpertLoads) -> Table:
    """Every expert of every layer: layer, expert, tokens, load_percent, and the stack where there are several."""
    if len(loads.stacks) == 1:
        return Table(list(_COLUMNS), [[layer, expert, tokens, load] for _, layer, expert, tokens, load in loads.rows()])
    rows = [[layer, expert, tokens, load, stack] for stack, layer, expert, tokens, load in loads.rows()]
    return Table([*_COLUMNS, "stack"], rows)


def find_hottest_experts(loads: ExpertLoads, count: int = 20) -> Table:
    """The experts with the highest ``load_over_ideal`` (1 is balanced), hottest first, columns as in the table."""
    table = make_expert_table(loads)
    ratios = [ratio for layer in loads for ratio in layer.over_ideal()]
    hottest = heapq.nlargest(count, range(len(ratios)), key=ratios.__getitem__)
    return Table([*table.columns, "load_over_ideal"], [[*table.rows[index], ratios[index]] for index in hottest])
