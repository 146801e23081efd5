"""Rows of causal decoders with blocks of their own."""

from __future__ import annotations

from collections.abc import Mapping

from areal_callbacks.flops import families
from areal_callbacks.flops.attention import GQA, GQA_OWN_HEAD_DIM, MHA
from areal_callbacks.flops.compressed_attention import compressed_attention, stream_head
from areal_callbacks.flops.feed_forwards import (
    EXPERTS,
    GATED_MLP,
    PLAIN_MLP,
    SMALL_EXPERTS,
    dense_declared,
    experts,
    mlp,
    shared_expert,
    shared_experts,
)
from areal_callbacks.flops.heads import masked_language_model_head
from areal_callbacks.flops.layer_types import CHUNKED, SLIDING, declared, declared_or, full_every
from areal_callbacks.flops.layers import Stack, together

_ERNIE = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}
_ARIA = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_topk"}
_DBRX = {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
_LONGCAT = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
    "num_experts_per_tok": "moe_topk",
}
_GEMMA4 = Stack(
    families.gemma4_attention,
    families.gemma4_layer_parts,
    declared_or(full_every(6, SLIDING)),
    outside=families.gemma4_outside,
    names={"num_experts_per_tok": "top_k_experts"},
)

FAMILIES: Mapping[str, Stack] = {
    "aria_text": Stack(
        GQA, together(EXPERTS, shared_experts("moe_num_shared_experts", "intermediate_size")), names=_ARIA
    ),
    "biogpt": Stack(MHA, PLAIN_MLP),
    "dbrx": Stack(families.dbrx_attention, families.dbrx_experts, names=_DBRX),
    "deepseek_v4": Stack(
        compressed_attention,
        together(SMALL_EXPERTS, shared_expert("moe_intermediate_size")),
        declared,
        outside=stream_head,
    ),
    "ernie4_5_moe": Stack(
        GQA,
        together(SMALL_EXPERTS, shared_experts("moe_num_shared_experts")),
        is_dense=families.ernie_dense,
        dense=GATED_MLP,
        names=_ERNIE,
    ),
    "falcon": Stack(families.falcon_attention, mlp("ffn_hidden_size", gated=False, times_hidden=4)),
    "gemma3n_text": Stack(
        families.gemma3n_attention, families.gemma3n_layer_parts, declared, outside=families.gemma3n_outside
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "jetmoe": Stack(families.mixture_of_attention_heads, EXPERTS),
    "llama4_text": Stack(
        GQA_OWN_HEAD_DIM,
        together(EXPERTS, shared_expert("intermediate_size")),
        declared_or(full_every(4, CHUNKED)),
        is_dense=families.llama4_dense,
        dense=mlp("intermediate_size_mlp"),
    ),
    "longcat_flash": Stack(families.two_latent_attentions, families.experts_beside_zero_experts, names=_LONGCAT),
    "mimo_v2_flash": Stack(families.mimo_attention, experts(), declared, is_dense=dense_declared, dense=GATED_MLP),
    "modernbert-decoder": Stack(MHA, GATED_MLP, declared, head=masked_language_model_head()),
}
"""Model type → stack."""
