"""ExpertLoads against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.core.expert_loads import ExpertLoads, ExpertRow, LayerLoads

COUNTS = st.lists(st.integers(0, 2**40), min_size=1, max_size=16)


def layer(counts: list[int], number: int = 0, stack: str = "") -> LayerLoads:
    return LayerLoads(stack, number, torch.tensor(counts, dtype=torch.int64))


@given(COUNTS)
def test_statistics_of_a_layer(counts: list[int]) -> None:
    loads, array = layer(counts), np.array(counts, dtype=np.float64)
    if array.sum() == 0:
        assert (loads.max_over_ideal, loads.dead_experts, loads.coefficient_of_variation) == (0, 0, 0)
        assert loads.normalised_entropy == 0
        assert loads.percentages() == [0.0] * len(counts)
        return
    share = array / array.sum()
    assert loads.max_over_ideal == pytest.approx(array.max() / array.mean())
    assert loads.dead_experts == int((array == 0).sum())
    assert loads.coefficient_of_variation == pytest.approx(array.std() / array.mean())
    assert loads.percentages() == pytest.approx(list(100 * share))
    if len(counts) > 1:
        busy = share[share > 0]
        assert loads.normalised_entropy == pytest.approx(-(busy * np.log(busy)).sum() / np.log(len(counts)), abs=1e-12)


def test_a_hand_computed_layer() -> None:
    loads = layer([4, 0, 0, 4])
    assert loads.max_over_ideal == 2.0
    assert loads.dead_experts == 2
    assert loads.normalised_entropy == pytest.approx(0.5)
    assert loads.coefficient_of_variation == pytest.approx(1.0)


def test_rows_keep_their_order_and_name_everything() -> None:
    loads = ExpertLoads((layer([1, 3], 2), layer([0, 0], 5, "encoder")))
    assert list(loads.rows()) == [
        ExpertRow("", 2, 0, 1, 25.0),
        ExpertRow("", 2, 1, 3, 75.0),
        ExpertRow("encoder", 5, 0, 0, 0.0),
        ExpertRow("encoder", 5, 1, 0, 0.0),
    ]


def test_names_carry_the_stack_of_all_but_the_main_decoder() -> None:
    loads = ExpertLoads((layer([1, 1], 3), layer([3, 1], 3, "encoder")))
    assert loads.max_over_ideal() == {
        "moe_balance/layer_3/max_over_ideal": 1.0,
        "moe_balance/encoder/layer_3/max_over_ideal": 1.5,
    }
    assert loads.stacks == ["", "encoder"]


def test_worst_layers_come_first() -> None:
    loads = ExpertLoads((layer([1, 1], 0), layer([4, 0], 1), layer([3, 1], 2), layer([0, 0], 3)))
    assert [item.layer for item in loads.worst(3)] == [1, 2, 0]


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=4, max_size=4), min_size=2, max_size=5))
def test_merging_intervals_adds_their_counts(intervals: list[list[int]]) -> None:
    merged = ExpertLoads(())
    for counts in intervals:
        merged = merged.merge(ExpertLoads((layer(counts),)))
    assert merged.layers[0].counts.tolist() == np.array(intervals).sum(axis=0).tolist()


def test_merging_keeps_layers_that_one_side_lacks_in_order() -> None:
    first, second = ExpertLoads((layer([1, 2], 1),)), ExpertLoads((layer([3, 4], 0), layer([5, 6], 1)))
    merged = first.merge(second)
    assert [(item.layer, item.counts.tolist()) for item in merged] == [(0, [3, 4]), (1, [6, 8])]
    assert first.layers[0].counts.tolist() == [1, 2]


def test_merging_layers_of_different_width_names_the_layer() -> None:
    with pytest.raises(ValueError, match="moe_balance/layer_7 has 2 experts and 3"):
        ExpertLoads((layer([1, 2], 7),)).merge(ExpertLoads((layer([1, 2, 3], 7),)))
