"""Tables, series and charts of the expert loads, against counts written out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.readback import messages

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.writers.expert_images import enlarged
from areal_callbacks.writers.expert_tables import (
    ExpertScalars,
    LoadsBetweenTables,
    expert_table,
    heat_maps,
    hottest_experts,
    stack_key,
)


def layer(stack: str, number: int, *counts: int) -> LayerLoads:
    return LayerLoads(stack, number, torch.tensor(counts, dtype=torch.int64))


LOADS = ExpertLoads((layer("", 0, 1, 3), layer("", 7, 0, 0), layer("", 9, 10, 30)))
STACKS = ExpertLoads((layer("", 0, 1, 3), layer("encoder", 0, 5, 5, 10)))


def uniform(layers: int, experts: int) -> ExpertLoads:
    return ExpertLoads(tuple(layer("", number, *[1] * experts) for number in range(layers)))


def test_the_table_has_the_specified_columns_and_a_row_per_expert() -> None:
    assert expert_table(LOADS) == (
        ["layer", "expert", "tokens", "load_percent"],
        [[0, 0, 1, 25.0], [0, 1, 3, 75.0], [7, 0, 0, 0.0], [7, 1, 0, 0.0], [9, 0, 10, 25.0], [9, 1, 30, 75.0]],
    )


def test_only_a_model_with_several_stacks_has_a_column_for_them() -> None:
    columns, rows = expert_table(STACKS)
    assert columns == ["layer", "expert", "tokens", "load_percent", "stack"]
    assert [row[-1] for row in rows] == ["", "", "encoder", "encoder", "encoder"]
    assert rows[2] == [0, 0, 5, 25.0, "encoder"]
    assert expert_table(ExpertLoads(STACKS.layers[1:])).columns == ["layer", "expert", "tokens", "load_percent"]


def test_the_hottest_experts_come_first_measured_by_their_own_ideal() -> None:
    columns, rows = hottest_experts(STACKS, count=3)
    assert columns == ["layer", "expert", "tokens", "load_percent", "stack", "load_over_ideal"]
    # Ideal 2 in the decoder, 20 / 3 in the encoder.
    expected = [[0, 1, 3, 75.0, "", 1.5], [0, 2, 10, 50.0, "encoder", 1.5], [0, 0, 5, 25.0, "encoder", 0.75]]
    assert rows == expected


def test_every_export_has_a_table_by_default_and_empty_ones_are_passed_over() -> None:
    between = LoadsBetweenTables()
    assert between.add(LOADS) == LOADS
    assert between.add(None) is None
    assert between.add(ExpertLoads(())) is None


def test_a_later_table_sums_the_counts_since_the_one_before() -> None:
    between = LoadsBetweenTables(3)
    due = [between.add(None if step == 2 else ExpertLoads((layer("", 0, step, 10 * step),))) for step in range(1, 9)]
    assert [index + 1 for index, loads in enumerate(due) if loads] == [4, 7]
    sums = [loads.layers[0].counts.tolist() for loads in due if loads]
    assert sums == [[1 + 3 + 4, 10 * (1 + 3 + 4)], [5 + 6 + 7, 10 * (5 + 6 + 7)]]


def test_an_interval_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expert_table_every must be at least 1, got 0"):
        LoadsBetweenTables(0)


def test_single_experts_are_two_series_each() -> None:
    assert ExpertScalars("auto", "Trackio").of(STACKS) == {
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
    assert ExpertScalars("auto", "Trackio").of(None) == {}


def test_up_to_1024_series_are_automatic_and_more_are_off_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    automatic = ExpertScalars("auto", "SwanLab")
    assert len(automatic.of(uniform(4, 128))) == 1024
    assert messages(caplog) == []
    assert automatic.of(uniform(3, 171)) == automatic.of(uniform(3, 171)) == {}
    (message,) = messages(caplog)
    assert message.startswith("1,026 series, two per expert, are too many for SwanLab (1,024 at most)")
    assert len(ExpertScalars(True, "SwanLab").of(uniform(3, 171))) == 1026
    assert ExpertScalars(False, "SwanLab").of(uniform(1, 2)) == {}
    assert len(messages(caplog)) == 1


def test_a_heat_map_per_stack_shows_load_over_ideal_with_the_counts() -> None:
    charts = heat_maps(STACKS)
    assert list(charts) == ["moe_balance/expert_loads", "moe_balance/encoder/expert_loads"]
    option = json.loads(charts["moe_balance/encoder/expert_loads"].dump_options())
    assert option["series"][0]["data"] == [[0, 0, 0.75, 5, 25.0], [1, 0, 0.75, 5, 25.0], [2, 0, 1.5, 10, 50.0]]
    assert option["xAxis"]["data"] == ["0", "1", "2"]
    assert json.loads(heat_maps(LOADS)["moe_balance/expert_loads"].dump_options())["yAxis"]["data"] == ["0", "7", "9"]
    # The colours are centred on the ideal load, 1.
    assert (option["visualMap"]["min"] + option["visualMap"]["max"]) / 2 == 1


def test_the_main_decoder_keeps_the_plain_name() -> None:
    assert stack_key("moe_balance/expert_loads", "") == "moe_balance/expert_loads"
    assert stack_key("moe_balance/expert_loads", "encoder") == "moe_balance/encoder/expert_loads"


def test_pictures_are_enlarged_without_blending() -> None:
    image = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(2, 3, 3)
    large = enlarged(image, pixels=9).numpy()
    assert large.shape == (6, 9, 3)
    np.testing.assert_array_equal(large, np.kron(image.numpy(), np.ones((3, 3, 1), dtype=np.uint8)))
    assert enlarged(torch.zeros(1, 2000, 3)).shape == (1, 2000, 3)
