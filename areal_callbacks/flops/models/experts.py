"""Rows of causal decoders with experts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from areal_callbacks.flops.attention import (
    GATED_GQA,
    GQA,
    GQA_OWN_HEAD_DIM,
    head_or_channel_gated,
    multi_head_latent_attention,
    sparse_latent_attention,
)
from areal_callbacks.flops.feed_forwards import (
    EXPERTS,
    EXPERTS_AND_GATED_SHARED_EXPERT,
    EXPERTS_AND_NUMBERED_SHARED,
    EXPERTS_AND_SHARED_EXPERT,
    EXPERTS_AND_SHARED_EXPERTS,
    GATED_MLP,
    SMALL_EXPERTS,
    dense_before,
    dense_between_steps,
    dense_declared,
    dense_first,
    experts,
    shared_expert,
    shared_experts,
)
from areal_callbacks.flops.layer_types import (
    LINEAR,
    SLIDING,
    declared,
    declared_or,
    full_every,
    uniform_window,
    uniform_window_if_used,
    window_every_other,
)
from areal_callbacks.flops.layers import Stack, together
from areal_callbacks.flops.mixers import gated_delta_net

_Stack = partial(Stack, dense=GATED_MLP)

_DELTA_NET = declared_or(full_every(4, LINEAR, "full_attention_interval"))
_DEEPSEEK = _Stack(multi_head_latent_attention, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_first)
_DECLARED_DEEPSEEK = _Stack(multi_head_latent_attention, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_declared)
_SPARSE_DEEPSEEK = _Stack(sparse_latent_attention, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_declared)
_GLM4_MOE = _Stack(GQA, EXPERTS_AND_SHARED_EXPERTS, is_dense=dense_first)
_MIXTRAL = _Stack(GQA, EXPERTS, uniform_window)
_hybrid_qwen = partial(_Stack, GATED_GQA, layer_types=_DELTA_NET, mixers={LINEAR: gated_delta_net})

DECODERS_WITH_EXPERTS: Mapping[str, Stack] = {
    "axk1": _DECLARED_DEEPSEEK,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _SPARSE_DEEPSEEK,
    "dots1": _Stack(GQA, EXPERTS_AND_SHARED_EXPERTS, declared, is_dense=dense_first),
    "exaone_moe": _Stack(GQA, EXPERTS_AND_NUMBERED_SHARED, declared, is_dense=dense_declared),
    "flex_olmo": _Stack(GQA, EXPERTS),
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": _DECLARED_DEEPSEEK,
    "glm_moe_dsa": _SPARSE_DEEPSEEK,
    "gpt_oss": _Stack(GQA_OWN_HEAD_DIM, EXPERTS, declared_or(full_every(2, SLIDING))),
    "granitemoe": _Stack(GQA, EXPERTS),
    "granitemoeshared": _Stack(GQA, together(EXPERTS, shared_expert("shared_intermediate_size"))),
    "granitemoe_swa": _Stack(GQA, together(EXPERTS, shared_expert("shared_intermediate_size")), declared),
    "hunyuan_v1_moe": _Stack(
        GQA,
        together(EXPERTS, shared_experts("num_shared_expert", "intermediate_size", default=1)),
        names={"num_experts_per_tok": "moe_topk"},
    ),
    "hy_v3": _Stack(GQA_OWN_HEAD_DIM, EXPERTS_AND_NUMBERED_SHARED, is_dense=dense_declared),
    "kimi_k2": _DEEPSEEK,
    "kolibri1": _Stack(GQA_OWN_HEAD_DIM, EXPERTS_AND_SHARED_EXPERT, declared),
    "mellum": _Stack(GQA_OWN_HEAD_DIM, SMALL_EXPERTS, declared, is_dense=dense_declared),
    "minimax_m2": _Stack(GQA_OWN_HEAD_DIM, EXPERTS),
    "mistral4": _DECLARED_DEEPSEEK,
    "mixtral": _MIXTRAL,
    "olmoe": _Stack(GQA, EXPERTS),
    "phimoe": _MIXTRAL,
    "qwen2_moe": _Stack(
        GQA, EXPERTS_AND_GATED_SHARED_EXPERT, declared_or(window_every_other), is_dense=dense_between_steps
    ),
    "qwen3_5_text": _hybrid_qwen(GATED_MLP),
    "qwen3_5_moe_text": _hybrid_qwen(EXPERTS_AND_GATED_SHARED_EXPERT),
    "qwen3_moe": _Stack(GQA, SMALL_EXPERTS, uniform_window_if_used, is_dense=dense_between_steps),
    "qwen3_next": _hybrid_qwen(EXPERTS_AND_GATED_SHARED_EXPERT, is_dense=dense_between_steps),
    "sarvam_mla": _DEEPSEEK,
    "sarvam_moe": _GLM4_MOE,
    "solar_open": _Stack(GQA_OWN_HEAD_DIM, EXPERTS_AND_SHARED_EXPERTS),
    "laguna": _Stack(
        head_or_channel_gated,
        EXPERTS_AND_SHARED_EXPERT,
        declared,
        is_dense=dense_declared,
        names={"num_attention_heads": "num_attention_heads_per_layer"},
    ),
    "afmoe": _Stack(GATED_GQA, EXPERTS_AND_NUMBERED_SHARED, declared, is_dense=dense_before("num_dense_layers")),
    "flint": _Stack(GQA_OWN_HEAD_DIM, EXPERTS_AND_SHARED_EXPERT, declared, is_dense=dense_between_steps),
    "beam": _Stack(GATED_GQA, SMALL_EXPERTS, declared, is_dense=dense_declared),
    "cohere2_moe": _Stack(GQA, experts("intermediate_size"), declared, is_dense=dense_declared),
}
"""Model type → stack."""
