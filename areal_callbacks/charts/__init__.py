"""W&B custom charts of the MoE balance, as Vega-Lite specifications.

==========================  =============================================  ====================================
Chart                       Shows                                          Input
==========================  =============================================  ====================================
moe_layer_expert_heatmap    load over ideal load, layer × expert           the table moe_balance/expert_loads
moe_single_layer_bar        one layer's experts with the ideal line        the table moe_balance/expert_loads
moe_step_layer_heatmap      max over ideal load, step × layer              a table with step, layer and value
moe_step_layer_history      max over ideal load, step × layer              the scalars of the layers
==========================  =============================================  ====================================

The data is called ``wandb``. ``${field:name:default}`` and ``${string:name:default}`` are W&B's placeholders, which are
filled in the chart editor.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from areal_callbacks.core.names import name_max_over_ideal

CHARTS = {
    "moe_layer_expert_heatmap": "MoE layer × expert load",
    "moe_single_layer_bar": "MoE experts of one layer",
    "moe_step_layer_heatmap": "MoE step × layer imbalance (table)",
    "moe_step_layer_history": "MoE step × layer imbalance (scalars)",
}
"""Name → title for people."""

MOST_LAYERS = 128

_PLACEHOLDER = re.compile(r"\$\{(field|string):([^:}]+):[^}]*\}")


def load_chart(name: str, *, defaults: bool = True, layers: int = MOST_LAYERS, stack: str = "") -> dict[str, Any]:
    """A specification.

    Args:
        name: one of ``CHARTS``.
        defaults: keep the defaults of the placeholders, as for pasting into the chart editor. W&B's presets take
            placeholders without them.
        layers: how many layers ``moe_step_layer_history`` looks for; those that a run lacks are not drawn.
        stack: of the layers that this chart looks for; by default the main decoder.

    Raises:
        ValueError: no chart of that name, or no layer.
    """
    if name not in CHARTS:
        raise ValueError(f"no chart {name!r}; choose among {', '.join(CHARTS)}")
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    specification: dict[str, Any] = json.loads(text if defaults else _PLACEHOLDER.sub(r"${\1:\2}", text))
    for step in specification.get("transform", ()):
        if "fold" in step:
            step["fold"] = [name_max_over_ideal(stack, layer) for layer in range(layers)]
    return specification
