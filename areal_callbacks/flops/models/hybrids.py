"""Rows of causal decoders with state spaces, linear attention or convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from areal_callbacks.flops.attention import GQA, GQA_OWN_HEAD_DIM, head_gated, multi_head_latent_attention
from areal_callbacks.flops.feed_forwards import (
    EXPERTS,
    EXPERTS_AND_NUMBERED_SHARED,
    EXPERTS_AND_SHARED_EXPERT,
    GATED_MLP,
    PLAIN_MLP,
    SMALL_EXPERTS,
    dense_before,
    dense_declared,
    mlp,
    shared_expert,
)
from areal_callbacks.flops.hybrids import (
    adjusted_mlp,
    attention_every,
    dense_off_period,
    halved_mlp,
    latent_experts,
    rounded_mlp,
    shared_transformer,
    translate,
)
from areal_callbacks.flops.layer_types import LINEAR, SLIDING, cycle, declared, every, indexed, windowed_if_set
from areal_callbacks.flops.layers import Stack, together
from areal_callbacks.flops.mixers import (
    MAMBA_FIELDS,
    beside,
    gated_delta_net,
    gated_recurrence,
    kimi_delta_attention,
    lightning_attention,
    mamba,
    mamba2,
    matrix_lstm,
    rwkv_channel_mix,
    rwkv_time_mix,
    short_convolution,
)

_Stack = partial(Stack, dense=GATED_MLP)
_only_mamba = partial(Stack, GQA, None, every(LINEAR))
_conv = {"conv": short_convolution}
_WORDS = translate({"attention": "full_attention", "mamba": LINEAR})

HYBRIDS: Mapping[str, Stack] = {
    "bailing_hybrid": _Stack(
        head_gated(multi_head_latent_attention),
        EXPERTS_AND_NUMBERED_SHARED,
        declared,
        is_dense=dense_declared,
        mixers={LINEAR: kimi_delta_attention(low_rank_gates=False)},
        names={"num_experts_per_tok": "num_experts_per_token"},
    ),
    "bamba": Stack(GQA, GATED_MLP, indexed("attn_layer_indices", LINEAR), mixers={LINEAR: mamba2}, names=MAMBA_FIELDS),
    "falcon_h1": Stack(beside(GQA, mamba2), GATED_MLP, names=MAMBA_FIELDS),
    "falcon_mamba": _only_mamba(mixers={LINEAR: mamba}),
    "granitemoehybrid": Stack(
        GQA,
        together(EXPERTS, shared_expert("shared_intermediate_size")),
        _WORDS,
        is_dense=lambda layer: not layer.fields.integer("num_local_experts", "num_experts"),
        dense=mlp("shared_intermediate_size"),
        mixers={LINEAR: mamba2},
        names=MAMBA_FIELDS,
    ),
    "jamba": _Stack(
        GQA,
        EXPERTS,
        attention_every("attn_layer_period", "attn_layer_offset"),
        is_dense=dense_off_period,
        mixers={LINEAR: mamba},
        names=MAMBA_FIELDS,
    ),
    "kimi_linear": _Stack(
        multi_head_latent_attention,
        EXPERTS_AND_NUMBERED_SHARED,
        declared,
        is_dense=dense_declared,
        mixers={LINEAR: kimi_delta_attention(low_rank_gates=True)},
        names={"num_experts_per_tok": "num_experts_per_token"},
    ),
    "lara_mini": Stack(GQA_OWN_HEAD_DIM, EXPERTS_AND_SHARED_EXPERT, declared, mixers={LINEAR: gated_delta_net}),
    "lfm2": Stack(GQA, adjusted_mlp, declared, mixers=_conv),
    "lfm2_moe": _Stack(GQA, SMALL_EXPERTS, declared, is_dense=dense_before("num_dense_layers"), mixers=_conv),
    "lfm3": Stack(head_gated(GQA, "use_attention_gate"), GATED_MLP, declared, mixers=_conv),
    "mamba": _only_mamba(mixers={LINEAR: mamba}),
    "mamba2": _only_mamba(
        mixers={LINEAR: mamba2}, names={"mamba_num_heads": "num_heads", "mamba_head_dim": "head_dim"}
    ),
    "minimax": Stack(GQA, EXPERTS, windowed_if_set(declared), mixers={LINEAR: lightning_attention}),
    "nemotron_h": Stack(
        GQA_OWN_HEAD_DIM,
        None,
        _WORDS,
        mixers={LINEAR: mamba2, "moe": latent_experts, "mlp": PLAIN_MLP},
        names={"layer_types": "layers_block_type", "state_size": "ssm_state_size"},
    ),
    "olmo_hybrid": Stack(GQA, GATED_MLP, declared, mixers={LINEAR: gated_delta_net}),
    "recurrent_gemma": Stack(
        GQA_OWN_HEAD_DIM,
        halved_mlp,
        cycle("block_types", {"attention": SLIDING, "recurrent": LINEAR}),
        mixers={LINEAR: gated_recurrence},
        names={"sliding_window": "attention_window_size"},
    ),
    "rwkv": Stack(rwkv_time_mix, rwkv_channel_mix),
    "xlstm": Stack(
        matrix_lstm,
        rounded_mlp,
        names={"hidden_size": "embedding_dim", "num_hidden_layers": "num_blocks"},
    ),
    "zamba2": Stack(
        shared_transformer,
        None,
        translate({"mamba": LINEAR}),
        mixers={LINEAR: mamba2, "hybrid": shared_transformer},
        names={
            **MAMBA_FIELDS,
            "layer_types": "layers_block_type",
            "mamba_num_heads": "n_mamba_heads",
            "mamba_head_dim": "mamba_headdim",
            "n_groups": "mamba_ngroups",
        },
    ),
}
"""Model type → stack."""
