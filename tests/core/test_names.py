"""Names of metrics: the specified ones, with the stack of all but the main decoder."""

from __future__ import annotations

import pytest

from areal_callbacks.core import names


@pytest.mark.parametrize(
    ("stack", "layer", "prefix"), [("", 3, "moe_balance/layer_3"), ("encoder", 0, "moe_balance/encoder/layer_0")]
)
def test_a_layer_has_a_prefix_and_a_balance(stack: str, layer: int, prefix: str) -> None:
    assert names.name_layer(stack, layer) == prefix
    assert names.name_max_over_ideal(stack, layer) == f"{prefix}/max_over_ideal"


def test_the_main_decoder_keeps_the_plain_name() -> None:
    assert names.name_in_stack("moe_balance/expert_loads", "") == "moe_balance/expert_loads"
    assert names.name_in_stack("moe_balance/expert_loads", "encoder") == "moe_balance/encoder/expert_loads"


def test_the_global_names_are_the_specified_ones() -> None:
    assert (names.MAX_OVER_IDEAL_MAX, names.MAX_OVER_IDEAL_MEAN, names.WORST_LAYER, names.DEAD_EXPERTS) == (
        "moe_balance/max_over_ideal_max",
        "moe_balance/max_over_ideal_mean",
        "moe_balance/worst_layer",
        "moe_balance/dead_experts",
    )
    assert (names.EXPERT_LOADS, names.HOTTEST_EXPERTS) == ("moe_balance/expert_loads", "moe_balance/hottest_experts")
