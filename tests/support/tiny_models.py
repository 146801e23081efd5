"""One small configuration of every built-in model type, with unequal dimensions so that no two can be confused."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import CONFIG_MAPPING

from areal_callbacks.flops.models import ARCHITECTURES, COMPOSITES
from areal_callbacks.flops.models.vision_and_audio import AUDIO, IMAGES, IMAGES_AND_TEXTS, TEXT_TOWERS

COMMON: dict[str, Any] = {
    # width and depth
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_dim", "emb_dim"), 48),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dff", "ffn_hidden_size", "hidden_dim"), 40),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 40),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_blocks"), 4),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 3),
    "d_kv": 14,
    "vocab_size": 97,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # attention
    **dict.fromkeys(("num_attention_heads", "n_heads", "num_heads", "n_head", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 5,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 3,
    # experts
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 6),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 28),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 36),
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
    # linear attention and state spaces
    **dict.fromkeys(("linear_num_key_heads", "n_groups", "mamba_n_groups", "mamba_ngroups"), 2),
    **dict.fromkeys(("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads", "n_mamba_heads"), 4),
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 14),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head", "mamba_headdim"), 24),
}
"""Applied to every configuration that has the field."""

LATENT_ATTENTION: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 4}
"""Applied to multi-head latent attention, whose rotary part is all that has heads of its own."""


def _sections(*widths: int) -> dict[str, Any]:
    """Rotary embeddings of three axes, whose widths together fill half a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(widths)}}


_TWO_KINDS: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
_GEMMA_INPUTS: dict[str, Any] = {"hidden_size_per_layer_input": 14, "vocab_size_per_layer_input": 97}
_DISENTANGLED: dict[str, Any] = {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 7}
_DEEPSEEK_EXPERTS: dict[str, Any] = {"first_k_dense_replace": 1, "n_shared_experts": 2}

SPECIAL: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "index_topk": 2,
        "layer_types": ["sliding_attention", *["compressed_sparse_attention", "heavily_compressed_attention"] * 2],
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
        "num_hidden_layers": 5,
        "hc_mult": 3,
        "o_groups": 2,
        "o_lora_rank": 9,
        "partial_rotary_factor": 0.5,
    },
    "exaone_moe": {"num_shared_experts": 2},
    "fsmt": {"src_vocab_size": 97, "tgt_vocab_size": 97},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "gptj": {"rotary_dim": 4},
    "helium": {"head_dim": 12},
    "mellum": {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "gemma3_text": {"num_hidden_layers": 7},
    "kolibri1": {"num_hidden_layers": 5},
    "deepseek_v2": {"q_lora_rank": None, **_DEEPSEEK_EXPERTS},
    "deepseek_v3": _DEEPSEEK_EXPERTS,
    "glm4_moe": _DEEPSEEK_EXPERTS,
    "dots1": {"n_shared_experts": 2},
    "stablelm": {"partial_rotary_factor": 0.5},
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2, "num_shared_experts": 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "falcon_h1": {"mamba_d_ssm": 96},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 2},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_head_dim": 7,
        "linear_num_heads": 3,
        "num_local_experts": 6,
    },
    "laguna": {
        "num_attention_heads_per_layer": [4, 6, 4, 6],
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 4, "head_dim": 24},
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 1},
    "nemotron_h": {"moe_shared_expert_intermediate_size": 36},
    "recurrent_gemma": {"attention_window_size": 5, "num_hidden_layers": 6, "head_dim": 12},
    "albert": {"embedding_size": 22, "num_hidden_groups": 1},
    "nllb-moe": {
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 3,
        "router_ignore_padding_tokens": True,
    },
    "whisper": {"num_mel_bins": 11, "max_source_positions": 9, "max_target_positions": 16},
    "switch_transformers": {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1},
    "aria_text": {"moe_num_shared_experts": 3},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"moe_num_experts": 6, "moe_top_k": 2, "ffn_hidden_size": 28, "hidden_size": 48},
    },
    "ernie4_5_moe": {
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 2,
        "moe_num_shared_experts": 3,
        "num_hidden_layers": 5,
    },
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gemma3n_text": {**_TWO_KINDS, **_GEMMA_INPUTS, "laurel_rank": 6},
    "gemma4_text": {**_TWO_KINDS, **_GEMMA_INPUTS, "global_head_dim": 20, "enable_moe_block": True},
    "gemma4_unified_text": {**_TWO_KINDS, "global_head_dim": 20, "attention_k_eq_v": True},
    "jetmoe": {"kv_channels": 18},
    "llama4_text": {
        "intermediate_size_mlp": 44,
        "attention_chunk_size": 5,
        "no_rope_layers": [1, 0, 1, 0],
        "interleave_moe_layer_step": 2,
    },
    "longcat_flash": {"zero_expert_num": 0},
    "modernbert-decoder": {"local_attention": 10},
    "deberta": _DISENTANGLED,
    "deberta-v2": _DISENTANGLED | {"position_buckets": 6},
    "distilbert": {"hidden_dim": 40},
    "electra": {"embedding_size": 22},
    "rembert": {"input_embedding_size": 22, "output_embedding_size": 26},
    "modernbert": {"local_attention": 6},
    "roberta-prelayernorm": {},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "glm4v_moe_text": _sections(1, 1, 1) | {"n_shared_experts": 2},
    "glm4v_text": _sections(2, 2, 2),
    "glm_ocr_text": _sections(2, 2, 2),
    "paddleocr_vl_text": _sections(2, 3, 3),
    "qwen2_5_omni_text": _sections(2, 2, 2),
    "qwen2_5_vl_text": _sections(2, 2, 2),
    "qwen2_vl_text": _sections(2, 2, 2),
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"] * 3,
        "num_hidden_layers": 6,
        "hybrid_layer_ids": [1, 3, 5],
        "num_mem_blocks": 2,
        "adapter_rank": 9,
    },
}
"""What a type needs beyond: fields set, or left at their defaults where the value is ``...``."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2 with a query rank": ("deepseek_v2", {"q_lora_rank": 11}),
    "deepseek_v3 without a query rank": ("deepseek_v3", {"q_lora_rank": None}),
    "deepseek_v3 all dense": ("deepseek_v3", {"first_k_dense_replace": 4}),
    "gemma3_text with declared layers": ("gemma3_text", {"layer_types": ["full_attention"] * 7}),
    "gpt_bigcode with all key-value heads": ("gpt_bigcode", {"multi_query": False}),
    "llama with as many key-value heads": ("llama", {"num_key_value_heads": None}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "mixtral without a window": ("mixtral", {"sliding_window": None}),
    "phi3 without a window": ("phi3", {"sliding_window": None}),
    "qwen2 without its window": ("qwen2", {"use_sliding_window": False}),
    "qwen2_moe without its window": ("qwen2_moe", {"use_sliding_window": False}),
    "qwen3_moe without its window": ("qwen3_moe", {"use_sliding_window": False}),
    "falcon with one key-value head": ("falcon", {"new_decoder_architecture": False}),
    "falcon with all key-value heads": (
        "falcon",
        {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 4},
    ),
    "gemma4_text without experts": ("gemma4_text", {"use_double_wide_mlp": True, "enable_moe_block": False}),
    "gemma behind a tower": ("gemma", {"use_bidirectional_attention": True}),
    "xlm as a decoder": ("xlm", {"causal": True}),
    "bert as a decoder": ("bert", {"is_decoder": True}),
    "albert with two layers in a group": ("albert", {"inner_group_num": 2, "num_hidden_groups": 2}),
    "deberta-v2 with a convolution": ("deberta-v2", {"conv_kernel_size": 3}),
    "laguna with a gate for each channel": ("laguna", {"gating": "per-element"}),
    "lfm3 without gates": ("lfm3", {"use_attention_gate": False}),
    "deberta without relative positions": ("deberta", {"relative_attention": False}),
    "t5 with gated MLPs": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "nemotron_h in a latent space": ("nemotron_h", {"moe_latent_size": 22}),
    "qwen3_moe without experts": ("qwen3_moe", {"num_experts": 0}),
    "qwen3_next all sparse": ("qwen3_next", {"decoder_sparse_step": 1, "mlp_only_layers": None}),
}
"""Name → model type and changed fields: the branches that the first table leaves out."""

SAME_AS = {
    **dict.fromkeys(("exaone", "internlm3", "iquestcoder"), "llama"),
    "kimi_k2": "deepseek_v3",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "glm4_moe",
    **COMPOSITES,
}
"""Types that transformers builds only under another type, or as a composite of it."""

BESIDE_TOKENS = frozenset({*IMAGES, *TEXT_TOWERS, *IMAGES_AND_TEXTS, *AUDIO})
"""Types whose sequences are no tokens, or whose models have no head: tests/flops/test_vision_and_audio.py has them."""

TINY = [name for name in ARCHITECTURES if name not in SAME_AS and name not in BESIDE_TOKENS]
"""Types that this file has a small configuration for."""


def tiny_fields(model_type: str) -> dict[str, Any]:
    """The fields that a small model of a type sets, with its model_type."""
    known = inspect.signature(CONFIG_MAPPING[model_type]).parameters
    values = COMMON | (LATENT_ATTENTION if "qk_rope_head_dim" in known else {})
    values = {name: value for name, value in values.items() if name in known} | SPECIAL.get(model_type, {})
    return {"model_type": model_type} | {name: value for name, value in values.items() if value is not ...}


def fields_of(name: str) -> dict[str, Any]:
    """The fields of a model type or a variant."""
    model_type, changes = VARIANTS.get(name, (name, {}))
    return tiny_fields(model_type) | changes
