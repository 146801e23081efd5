"""The table of model types in docs/flops.md: ``PYTHONPATH=tests python -m support.flops_table`` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.counted_flops import ALL_EXPERTS
from support.flops_references import build_config
from support.recurrent_forms import RECURRENT_TYPES
from support.tiny_models import SAME_AS, fields_of

from areal_callbacks.flops.encoder_decoder import EncoderDecoder
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.masks import CAUSAL
from areal_callbacks.flops.models import ARCHITECTURES, COMPOSITES

PAGE = Path(__file__).parents[2] / "docs" / "flops.md"
BEGIN, END = "<!-- model types, written by tests/support/flops_table.py -->", "<!-- end of model types -->"

LEFT_OUT = {
    "deberta": "projection of the relative positions",
    "deberta-v2": "projection of the relative positions",
    "rwkv": "elementwise recurrence",
    "recurrent_gemma": "elementwise recurrence",
    "esm": "contact head",
    "longcat_flash": "selection of zero experts beyond their share",
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"), "predicted tokens"),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "mellum", "nemotron_h"), "predicted tokens"),
    **dict.fromkeys(COMPOSITES, "towers of other modalities"),
}
"""What a model of the type does beside that is not counted."""


def table() -> str:
    """All rows, sorted by model type."""
    rows = ["| Model type | Blocks | Verified by | Left out |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{model_type}` | {_blocks(model_type)} | {_status(model_type)} | {LEFT_OUT.get(model_type, '')} |"
        for model_type in sorted(ARCHITECTURES)
    ]
    return "\n".join(rows)


def _blocks(model_type: str) -> str:
    architecture = ARCHITECTURES[model_type]
    config = build_config(fields_of(SAME_AS.get(model_type, model_type)))
    if isinstance(architecture, EncoderDecoder):
        sides = (_names(stack, config) for stack in (architecture.encoder, architecture.decoder))
        return "encoder: {}; decoder: {}, cross attention".format(*sides)
    return _names(architecture, config)


def _names(stack: Stack, config: Any) -> str:
    return ", ".join(dict.fromkeys(_name(block) for block in _all(stack, config)))


def _all(stack: Stack, config: Any) -> Iterable[Block]:
    return stack.blocks(Fields(config, config.model_type, stack.names))


def _name(block: Block) -> str:
    name = block.name.replace("_", " ")
    plain = block.pattern == CAUSAL or not block.macs.per_pair
    return name if plain else f"{type(block.pattern).__name__.lower()} {name}"


def _status(model_type: str) -> str:
    if model_type in SAME_AS:
        return f"as `{SAME_AS[model_type]}`"
    how = "operators"
    if model_type in RECURRENT_TYPES:
        how += " in recurrent form"
    if model_type in ALL_EXPERTS:
        how += " with all experts"
    return how if isinstance(ARCHITECTURES[model_type], EncoderDecoder) else f"{how}, weights"


def page_with_table(page: str) -> str:
    """The page with today's table between the marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
