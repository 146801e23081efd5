"""Names of metrics and tables that several modules write or read. Loads no torch."""

from __future__ import annotations

MOE_BALANCE = "moe_balance"
MAX_OVER_IDEAL = "max_over_ideal"

MAX_OVER_IDEAL_MAX = f"{MOE_BALANCE}/{MAX_OVER_IDEAL}_max"
MAX_OVER_IDEAL_MEAN = f"{MOE_BALANCE}/{MAX_OVER_IDEAL}_mean"
WORST_LAYER = f"{MOE_BALANCE}/worst_layer"
DEAD_EXPERTS = f"{MOE_BALANCE}/dead_experts"
STARVED_EXPERTS = f"{MOE_BALANCE}/starved_experts"

EXPERT_LOADS = f"{MOE_BALANCE}/expert_loads"
"""The table, heat map or image of the expert loads."""

HOTTEST_EXPERTS = f"{MOE_BALANCE}/hottest_experts"


def name_layer(stack: str, layer: int) -> str:
    """``moe_balance/layer_<id>``, the prefix of a layer's metrics; see :func:`name_in_stack`."""
    return name_in_stack(f"{MOE_BALANCE}/layer_{layer}", stack)


def name_max_over_ideal(stack: str, layer: int) -> str:
    """``moe_balance/layer_<id>/max_over_ideal``; see :func:`name_in_stack`."""
    return f"{name_layer(stack, layer)}/{MAX_OVER_IDEAL}"


def name_in_stack(name: str, stack: str) -> str:
    """``moe_balance/<stack>/<rest>``; the main decoder is the stack ``""`` and keeps the name as it is."""
    section, _, rest = name.partition("/")
    return "/".join(part for part in (section, stack, rest) if part)
