"""AReaL's flat keys of single experts, taken out of metrics; counts and shares computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.readback import messages

from areal_callbacks import split_expert_loads
from areal_callbacks.core.expert_loads import ExpertLoads


def series(layer: str, **fields: list[float]) -> dict[str, float]:
    return {
        f"moe_balance/{layer}/expert_{expert}/{field}": value
        for field, values in fields.items()
        for expert, value in enumerate(values)
    }


def rows(loads: ExpertLoads | None) -> list[tuple[str, int, int, int, float]]:
    return [] if loads is None else [tuple(row) for row in loads.rows()]


def test_the_keys_of_a_layer_become_its_counts_and_everything_else_stays() -> None:
    others = {"loss": 0.5, "moe_balance/layer_3/max_over_ideal": 1.5, "train_perf/tokens": 8, "moe_balance/x": "?"}
    keys = series("layer_3", tokens=[6, 2], load_percent=[75.0, 25.0])
    split = split_expert_loads({**keys, **others})
    assert split.metrics == others
    assert rows(split.loads) == [("", 3, 0, 6, 75.0), ("", 3, 1, 2, 25.0)]
    assert split.series == {}


def test_layers_are_in_order_and_may_lie_in_stacks() -> None:
    keys = {**series("layer_10", tokens=[1]), **series("vision/layer_0", tokens=[4]), **series("layer_2", tokens=[3])}
    assert [row[:4] for row in rows(split_expert_loads(keys).loads)] == [
        ("", 2, 0, 3),
        ("", 10, 0, 1),
        ("vision", 0, 0, 4),
    ]


def test_an_expert_that_is_not_named_had_no_token() -> None:
    keys = {
        "moe_balance/layer_0/expert_3/tokens": torch.tensor(4),
        "moe_balance/layer_0/expert_1/tokens": np.float64(12),
    }
    assert [row[3:] for row in rows(split_expert_loads(keys).loads)] == [(0, 0.0), (12, 75.0), (0, 0.0), (4, 25.0)]


def test_further_values_of_single_experts_are_kept() -> None:
    keys = series("layer_0", tokens=[1, 3], bias=[0.5, -0.5])
    split = split_expert_loads(keys)
    assert rows(split.loads) == [("", 0, 0, 1, 25.0), ("", 0, 1, 3, 75.0)]
    assert split.series == series("layer_0", bias=[0.5, -0.5])


@pytest.mark.parametrize("tokens", [[0.5, 1.0], [-1, 2], [float("nan"), 1], [float("inf"), 1], ["many", 1], []])
def test_what_is_no_count_makes_no_table_and_says_so_once(
    tokens: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    keys = series("layer_0", tokens=tokens, load_percent=[40.0, 60.0])
    for _ in range(2):
        split = split_expert_loads(keys)
    assert (split.loads, split.metrics) == (None, {})
    assert split.series["moe_balance/layer_0/expert_1/load_percent"] == 60.0
    assert messages(caplog) == ["moe_balance/layer_0: the tokens of its experts are no whole numbers: no table of them"]


@pytest.mark.parametrize(
    "key",
    [
        "moe_balance/layer_0/expert_0",
        "moe_balance/layer_x/expert_0/tokens",
        "moe_balance/layer_0/expert_999999/tokens",
        "ppo/moe_balance/layer_0/expert_0/tokens",
    ],
)
def test_other_keys_are_metrics(key: str) -> None:
    assert split_expert_loads({key: 1}) == ({key: 1}, None, {})


@given(st.dictionaries(st.tuples(st.integers(0, 20), st.integers(0, 9)), st.integers(0, 2**40), min_size=1))
def test_all_counts_arrive_whatever_their_order(counts: dict[tuple[int, int], int]) -> None:
    split = split_expert_loads({f"moe_balance/layer_{layer}/expert_{e}/tokens": n for (layer, e), n in counts.items()})
    found = {(layer, expert): tokens for _, layer, expert, tokens, _ in rows(split.loads) if tokens}
    assert found == {place: tokens for place, tokens in counts.items() if tokens}
