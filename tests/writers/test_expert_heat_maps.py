"""Heat maps of the expert loads, against counts written out by hand."""

from __future__ import annotations

import json

from support.report_runs import loads

from areal_callbacks.writers.expert_heat_maps import draw_heat_maps

LOADS = loads({("", 0): [1, 3], ("", 7): [0, 0], ("", 9): [10, 30]})
STACKS = loads({("", 0): [1, 3], ("encoder", 0): [5, 5, 10]})


def test_a_heat_map_per_stack_shows_load_over_ideal_with_the_counts() -> None:
    charts = draw_heat_maps(STACKS)
    assert list(charts) == ["moe_balance/expert_loads", "moe_balance/encoder/expert_loads"]
    option = json.loads(charts["moe_balance/encoder/expert_loads"].dump_options())
    assert option["series"][0]["data"] == [[0, 0, 0.75, 5, 25.0], [1, 0, 0.75, 5, 25.0], [2, 0, 1.5, 10, 50.0]]
    assert option["xAxis"]["data"] == ["0", "1", "2"]
    assert json.loads(draw_heat_maps(LOADS)["moe_balance/expert_loads"].dump_options())["yAxis"]["data"] == [
        "0",
        "7",
        "9",
    ]
    # The colours are centred on the ideal load, 1.
    assert (option["visualMap"]["min"] + option["visualMap"]["max"]) / 2 == 1
