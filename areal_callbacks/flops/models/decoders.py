"""Rows of dense causal decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from areal_callbacks.flops.attention import (
    GQA,
    GQA_OWN_HEAD_DIM,
    MHA,
    differential_attention,
    fused_query_attention,
    multi_head_latent_attention,
)
from areal_callbacks.flops.feed_forwards import GATED_MLP, PLAIN_MLP, PLAIN_MLP_4, mlp, mlp_of_hidden_sizes
from areal_callbacks.flops.layer_types import (
    SLIDING,
    cycle,
    declared,
    declared_or,
    full_every,
    uniform_window,
    window_from_layer,
)
from areal_callbacks.flops.layers import Stack

_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
_BLOOM_NAMES = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
_MPT_NAMES = {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
_OPT_NAMES = {"intermediate_size": "ffn_dim"}

_LLAMA = Stack(GQA, GATED_MLP)
_PLAIN = Stack(GQA, PLAIN_MLP)
_OWN_HEAD_DIM = Stack(GQA_OWN_HEAD_DIM, GATED_MLP)
_WINDOWED = Stack(GQA, GATED_MLP, uniform_window)
_DECLARED = Stack(GQA, GATED_MLP, declared)
_QWEN_WINDOWS = declared_or(window_from_layer)
_ALTERNATING_WINDOWS = declared_or(full_every(2, SLIDING))
_GEMMA3_WINDOWS = declared_or(full_every(6, SLIDING, "sliding_window_pattern"))
_GPT2 = Stack(MHA, PLAIN_MLP_4, names=_GPT2_NAMES)

DECODERS: Mapping[str, Stack] = {
    "apertus": _PLAIN,
    "apertus1p5_text": _PLAIN,
    "arcee": _PLAIN,
    "bitnet": _LLAMA,
    "bloom": Stack(MHA, PLAIN_MLP_4, names=_BLOOM_NAMES),
    "codegen": _GPT2,
    "cohere": _LLAMA,
    "cohere2": Stack(GQA, GATED_MLP, declared_or(full_every(4, SLIDING, "sliding_window_pattern"))),
    "ctrl": Stack(MHA, mlp("dff", gated=False), names=_GPT2_NAMES),
    "cwm": _DECLARED,
    "diffllama": Stack(differential_attention, GATED_MLP),
    "ernie4_5": _LLAMA,
    "exaone": _LLAMA,
    "exaone4": _DECLARED,
    "gemma": replace(_OWN_HEAD_DIM, prefix_sees_both_sides=True),
    "gemma2": Stack(GQA_OWN_HEAD_DIM, GATED_MLP, _ALTERNATING_WINDOWS, prefix_sees_both_sides=True),
    "gemma3_text": Stack(GQA_OWN_HEAD_DIM, GATED_MLP, _GEMMA3_WINDOWS),
    "glm": _OWN_HEAD_DIM,
    "glm4": _OWN_HEAD_DIM,
    "gpt-sw3": _GPT2,
    "gpt2": _GPT2,
    "gpt_bigcode": Stack(fused_query_attention, PLAIN_MLP_4, names=_GPT2_NAMES),
    "gpt_neo": Stack(
        MHA,
        PLAIN_MLP_4,
        cycle("attention_layers", {"global": "full_attention", "local": SLIDING}),
        names={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "sliding_window": "window_size"},
    ),
    "gpt_neox": Stack(MHA, PLAIN_MLP),
    "gpt_neox_japanese": Stack(MHA, mlp_of_hidden_sizes("intermediate_multiple_size")),
    "gptj": _GPT2,
    "granite": _LLAMA,
    "granite_swa": _DECLARED,
    "helium": _LLAMA,
    "hunyuan_v1_dense": _LLAMA,
    "hyperclovax": _LLAMA,
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "jais2": _PLAIN,
    "llama": _LLAMA,
    "minicpm3": Stack(multi_head_latent_attention, GATED_MLP),
    "ministral": _DECLARED,
    "ministral3": _WINDOWED,
    "mistral": _WINDOWED,
    "molmo2_text": _OWN_HEAD_DIM,
    "mpt": Stack(MHA, PLAIN_MLP_4, names=_MPT_NAMES),
    "nanochat": _PLAIN,
    "nemotron": _PLAIN,
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": Stack(GQA, GATED_MLP, declared_or(full_every(4, SLIDING))),
    "openai-gpt": _GPT2,
    "opt": Stack(MHA, PLAIN_MLP, names=_OPT_NAMES),
    "persimmon": Stack(MHA, PLAIN_MLP),
    "phi": _PLAIN,
    "phi3": _WINDOWED,
    "qwen2": Stack(GQA, GATED_MLP, _QWEN_WINDOWS),
    "qwen3": Stack(GQA_OWN_HEAD_DIM, GATED_MLP, _QWEN_WINDOWS),
    "seed_oss": _OWN_HEAD_DIM,
    "smollm3": _DECLARED,
    "stablelm": _LLAMA,
    "starcoder2": Stack(GQA, PLAIN_MLP, uniform_window),
    "vaultgemma": Stack(GQA_OWN_HEAD_DIM, GATED_MLP, _ALTERNATING_WINDOWS),
    "xglm": Stack(
        MHA,
        mlp("ffn_dim", gated=False),
        names={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads"},
    ),
    "youtu": Stack(multi_head_latent_attention, GATED_MLP),
}
"""Model type → stack."""
