"""Rows of the language parts of multimodal models, and the types of those models themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from areal_callbacks.flops.attention import GATED_GQA, GQA, GQA_OWN_HEAD_DIM
from areal_callbacks.flops.feed_forwards import (
    EXPERTS_AND_SHARED_EXPERTS,
    GATED_MLP,
    SMALL_EXPERTS,
    dense_between_steps,
    dense_declared,
    dense_first,
)
from areal_callbacks.flops.layer_types import declared, declared_or, window_from_layer
from areal_callbacks.flops.layers import Stack

_Stack = partial(Stack, dense=GATED_MLP)
_LLAMA = Stack(GQA, GATED_MLP)
_OWN_HEAD_DIM = Stack(GQA_OWN_HEAD_DIM, GATED_MLP)
_QWEN2 = Stack(GQA, GATED_MLP, declared_or(window_from_layer))
_QWEN3_MOE = _Stack(GQA, SMALL_EXPERTS, is_dense=dense_between_steps)

LANGUAGE_PARTS: Mapping[str, Stack] = {
    "deepseek_ocr2_text": _Stack(GQA, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_declared),
    "glm4v_text": _LLAMA,
    "glm4v_moe_text": _Stack(GQA, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_first),
    "glm_ocr_text": _LLAMA,
    "granite_docling_text": _LLAMA,
    "muse_glimmer_text": Stack(GATED_GQA, GATED_MLP, declared),
    "paddleocr_vl_text": _LLAMA,
    "qwen2_5_omni_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_vl_text": _OWN_HEAD_DIM,
}
"""Model type → stack."""

COMPOSITES: Mapping[str, str] = {
    "aria": "aria_text",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "granite_docling": "granite_docling_text",
    "llama4": "llama4_text",
    "muse_glimmer": "muse_glimmer_text",
    "paddleocr_vl": "paddleocr_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen2_5_omni": "qwen2_5_omni_text",
}
"""Type of a multimodal model → type of its language part, by which it is counted."""
