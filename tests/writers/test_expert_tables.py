"""Tables of the expert loads, against counts written out by hand."""

from __future__ import annotations

from support.report_runs import loads

from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.writers.expert_tables import find_hottest_experts, make_expert_table

LOADS = loads({("", 0): [1, 3], ("", 7): [0, 0], ("", 9): [10, 30]})
STACKS = loads({("", 0): [1, 3], ("encoder", 0): [5, 5, 10]})


def test_the_table_has_the_specified_columns_and_a_row_per_expert() -> None:
    assert make_expert_table(LOADS) == (
        ["layer", "expert", "tokens", "load_percent"],
        [[0, 0, 1, 25.0], [0, 1, 3, 75.0], [7, 0, 0, 0.0], [7, 1, 0, 0.0], [9, 0, 10, 25.0], [9, 1, 30, 75.0]],
    )


def test_only_a_model_with_several_stacks_has_a_column_for_them() -> None:
    columns, rows = make_expert_table(STACKS)
    assert columns == ["layer", "expert", "tokens", "load_percent", "stack"]
    assert [row[-1] for row in rows] == ["", "", "encoder", "encoder", "encoder"]
    assert rows[2] == [0, 0, 5, 25.0, "encoder"]
    assert make_expert_table(ExpertLoads(STACKS.layers[1:])).columns == ["layer", "expert", "tokens", "load_percent"]


def test_the_hottest_experts_come_first_measured_by_their_own_ideal() -> None:
    columns, rows = find_hottest_experts(STACKS, count=3)
    assert columns == ["layer", "expert", "tokens", "load_percent", "stack", "load_over_ideal"]
    # Ideal 2 in the decoder, 20 / 3 in the encoder.
    expected = [[0, 1, 3, 75.0, "", 1.5], [0, 2, 10, 50.0, "encoder", 1.5], [0, 0, 5, 25.0, "encoder", 0.75]]
    assert rows == expected
