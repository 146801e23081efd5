"""Which exports carry a drawing or single experts, against counts written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.readback import messages
from support.report_runs import loads

from areal_callbacks.config import MoEBalanceConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.writers.expert_rows import ExpertRows, ExpertScalars, LoadsBetweenTables

LOADS = loads({("", 0): [1, 3], ("", 7): [0, 0], ("", 9): [10, 30]})
STACKS = loads({("", 0): [1, 3], ("encoder", 0): [5, 5, 10]})


def uniform(layers: int, experts: int) -> ExpertLoads:
    return loads(np.ones((layers, experts), dtype=np.int64))


def test_every_export_has_a_table_by_default_and_empty_ones_are_passed_over() -> None:
    between = LoadsBetweenTables()
    assert between.add(LOADS) == LOADS
    assert between.add(None) is None
    assert between.add(ExpertLoads(())) is None


def test_a_later_table_sums_the_counts_since_the_one_before() -> None:
    between = LoadsBetweenTables(3)
    due = [between.add(None if step == 2 else loads({("", 0): [step, 10 * step]})) for step in range(1, 9)]
    assert [index + 1 for index, loads in enumerate(due) if loads] == [4, 7]
    sums = [loads.layers[0].counts.tolist() for loads in due if loads]
    assert sums == [[1 + 3 + 4, 10 * (1 + 3 + 4)], [5 + 6 + 7, 10 * (5 + 6 + 7)]]


def test_an_interval_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expert_table_every must be at least 1, got 0"):
        LoadsBetweenTables(0)


def test_single_experts_are_two_series_each() -> None:
    assert ExpertScalars("auto", "Trackio").list_values(STACKS) == {
        "moe_balance/layer_0/expert_0/tokens": 1,
        "moe_balance/layer_0/expert_0/load_percent": 25.0,
        "moe_balance/layer_0/expert_1/tokens": 3,
        "moe_balance/layer_0/expert_1/load_percent": 75.0,
        "moe_balance/encoder/layer_0/expert_0/tokens": 5,
        "moe_balance/encoder/layer_0/expert_0/load_percent": 25.0,
        "moe_balance/encoder/layer_0/expert_1/tokens": 5,
        "moe_balance/encoder/layer_0/expert_1/load_percent": 25.0,
        "moe_balance/encoder/layer_0/expert_2/tokens": 10,
        "moe_balance/encoder/layer_0/expert_2/load_percent": 50.0,
    }
    assert ExpertScalars("auto", "Trackio").list_values(None) == {}


def test_up_to_128_series_are_automatic_and_more_are_off_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    automatic = ExpertScalars("auto", "SwanLab")
    assert len(automatic.list_values(uniform(4, 16))) == 128
    assert messages(caplog) == []
    assert automatic.list_values(uniform(3, 171)) == automatic.list_values(uniform(3, 171)) == {}
    (message,) = messages(caplog)
    assert message.startswith("1,026 series, two per expert, are too many for SwanLab (128 at most)")
    assert len(ExpertScalars(True, "SwanLab").list_values(uniform(3, 171))) == 1026
    assert ExpertScalars(False, "SwanLab").list_values(uniform(1, 2)) == {}
    assert len(messages(caplog)) == 1


def test_a_row_holds_single_experts_always_and_a_drawing_when_it_is_due() -> None:
    balance = MoEBalanceConfig(expert_table_every=2)
    rows = ExpertRows(balance, "SwanLab", lambda due: {"drawn": due.layers[0].counts.tolist()})
    first, second, third = (rows.add(loads({("", 4): [step, 2 * step]})) for step in (1, 2, 3))
    assert first["moe_balance/layer_4/expert_1/tokens"] == 2
    assert [row.get("drawn") for row in (first, second, third)] == [None, [3, 6], None]
    assert rows.add(None) == {}
