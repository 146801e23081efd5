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
    "emu3_text_model": _LLAMA,
    "glm4v_text": _LLAMA,
    "glm4v_moe_text": _Stack(GQA, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_first),
    "glm_ocr_text": _LLAMA,
    "granite4_vision_text": _LLAMA,
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
    "apertus1p5": "apertus1p5_text",
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "emu3": "emu3_text_model",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "florence2": "bart",
    "fun_asr_nano": "qwen3",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "glmasr": "llama",
    "glmga": "glm4v_text",
    "got_ocr2": "qwen2",
    "granite4_vision": "granite4_vision_text",
    "granite_docling": "granite_docling_text",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "instructblip": "opt",
    "instructblipvideo": "opt",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "mistral3": "mistral",
    "modernvbert": "modernbert",
    "molmo2": "molmo2_text",
    "moss_transcribe_diarize": "qwen3",
    "muse_glimmer": "muse_glimmer_text",
    "musicflamingo": "qwen2",
    "nemo_speechlm": "nemotron_h",
    "nemotron_h_omni": "nemotron_h",
    "omniasr": "llama",
    "ovis2": "qwen2",
    "paddleocr_vl": "paddleocr_vl_text",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "pp_chart2table": "qwen2",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "shieldgemma2": "gemma3_text",
    "smolvlm": "llama",
    "vibevoice_asr": "qwen2",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""Type of a multimodal model → type of the language part that it has by default.

A model is counted by the type of the part that its own configuration names, whatever stands here.
"""

WITHOUT_LANGUAGE_MODEL = frozenset(
    {
        "cosmos3_omni",
        "gemma4_unified_assistant",
        "grounding-dino",
        "janus",
        "jev",
        "mm-grounding-dino",
        "pe_audio",
        "pe_audio_video",
        "pe_video",
        "vibevoice",
        "vision-text-dual-encoder",
    }
)
"""Composite types whose text part is not what mainly trains, or trains otherwise, so that its FLOPs would be wrong."""
