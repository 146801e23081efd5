"""The table of model types in docs/flops.md: ``PYTHONPATH=tests python -m support.flops_table`` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.counted_flops import ALL_EXPERTS
from support.flops_references import build_config
from support.recurrent_forms import RECURRENT_TYPES
from support.tiny_models import BESIDE_TOKENS, SAME_AS, fields_of
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from areal_callbacks.flops.encoder_decoder import EncoderDecoder
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.masks import CAUSAL
from areal_callbacks.flops.models import ARCHITECTURES, COMPOSITES, IMAGES_AND_TEXTS
from areal_callbacks.flops.models.vision_and_audio import AUDIO
from areal_callbacks.flops.sampled import Sampled
from areal_callbacks.flops.two_towers import TwoTowers

PAGE = Path(__file__).parents[2] / "docs" / "flops.md"
BEGIN, END = "<!-- model types, written by tests/support/flops_table.py -->", "<!-- end of model types -->"
BEGIN_WITHOUT, END_WITHOUT = BEGIN.replace("model types", "types without"), END.replace("model types", "types without")

LEFT_OUT = {
    "deberta": "projection of the relative positions",
    "deberta-v2": "projection of the relative positions",
    "deepseek_v4": "predicted tokens, weighted sum of the indexer's heads",
    "rwkv": "elementwise recurrence",
    "recurrent_gemma": "elementwise recurrence",
    "esm": "contact head",
    "longcat_flash": "selection of zero experts beyond their share",
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"), "predicted tokens"),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "mellum", "nemotron_h"), "predicted tokens"),
    **dict.fromkeys(COMPOSITES, "towers of other modalities"),
    **dict.fromkeys(IMAGES_AND_TEXTS, "similarities of the whole batch"),
    **dict.fromkeys(AUDIO, "masking and quantisation in pretraining"),
    "paligemma": "tower; attention to later positions of images and prompt",
}
"""What a model of the type does beside that is not counted."""


_BLOCKWISE = (
    "attention by blocks, hashes, landmarks or pooled positions",
    "bigbird_pegasus big_bird blt canine fnet funnel hrm_text led longformer longt5 minimax_m3_vl mra nystromformer "
    "pegasus_x perceiver reformer yoso",
)
_OTHER_MODALITY = (
    "its decoder attends to another modality, whose length no run records",
    "blip evolla git idefics kosmos-2 kosmos-2.5 mllama pi0 pix2struct pp_formulanet trocr udop",
)
_AUDIO = (
    "speech: frames of several rates, or several streams of codes",
    "canary cohere_asr dia kyutai_speech_to_text moonshine moonshine_streaming moshi musicgen musicgen_melody "
    "pop2piano seamless_m4t seamless_m4t_v2 speech_to_text speecht5 vibevoice voxtral_realtime",
)
_ANY_PARTS = (
    "put together from two models of any type",
    "encoder-decoder speech-encoder-decoder vision-encoder-decoder",
)
_ASSISTANT = ("drafts for another model and reads its keys", "gemma4_assistant gemma4_unified_assistant")
REASONS = {
    name: reason
    for reason, names in (_BLOCKWISE, _OTHER_MODALITY, _AUDIO, _ANY_PARTS, _ASSISTANT)
    for name in names.split()
}
"""Type → why it has no formula; the others have blocks of their own that nobody has asked for."""
_OWN_BLOCKS = "blocks of its own"
_LANGUAGE = (
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
)
"""Kinds of models that transformers trains on tokens."""


def types_without() -> str:
    """Language types of transformers that have no formula, by the reason."""
    kinds = (getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES") for kind in _LANGUAGE)
    names = {name for kind in kinds for name in kind if name in CONFIG_MAPPING} - ARCHITECTURES.keys()
    by_reason: dict[str, list[str]] = {}
    for name in sorted(names):
        by_reason.setdefault(REASONS.get(name, _OWN_BLOCKS), []).append(f"`{name}`")
    rows = [f"| {reason} | {', '.join(found)} |" for reason, found in sorted(by_reason.items())]
    return "\n".join(["| Why | Model types |", "| --- | --- |", *rows])


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
    if isinstance(architecture, TwoTowers):
        image, text = ([_name(b) for b in stack.blocks(f)] for stack, f, _ in architecture.towers(config, model_type))
        return f"image: {', '.join(dict.fromkeys(image))}; text: {', '.join(dict.fromkeys(text))}"
    if isinstance(architecture, Sampled):
        return f"convolutions, {_names(architecture.stack, config)}"
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
    pairs = isinstance(ARCHITECTURES[model_type], EncoderDecoder)
    return how if pairs or model_type in BESIDE_TOKENS else f"{how}, weights"


def page_with_table(page: str) -> str:
    """The page with today's table between the marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    page = f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
    before, rest = page.split(BEGIN_WITHOUT)
    _, after = rest.split(END_WITHOUT)
    return f"{before}{BEGIN_WITHOUT}\n\n{types_without()}\n\n{END_WITHOUT}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
