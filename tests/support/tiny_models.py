"""One small configuration of every built-in architecture, with unequal dimensions so that no two can be confused."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "pad_token_id": 0,
}
_HEAD_DIM = {"head_dim": 10}
_WINDOW = {"sliding_window": 5}
_QWEN_WINDOW = {"use_sliding_window": True, "max_window_layers": 1, **_WINDOW}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
_LOCAL_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
_SMALL_EXPERTS = {"moe_intermediate_size": 14, **_EXPERTS}
_SHARED_EXPERT = {"shared_expert_intermediate_size": 18, **_SMALL_EXPERTS}
_SOME_DENSE = {"decoder_sparse_step": 2, "num_hidden_layers": 5, "mlp_only_layers": [3]}
_DELTA_NET = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    **_HEAD_DIM,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 9,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
}
_GROUPED_EXPERTS = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 14,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}

TINY_MODELS: dict[str, dict[str, Any]] = {
    model_type: {"model_type": model_type, **_BASE, **fields}
    for model_type, fields in {
        "deepseek_v2": {**_LATENT, **_GROUPED_EXPERTS, "q_lora_rank": None, "kv_lora_rank": 8},
        "deepseek_v3": {**_LATENT, **_GROUPED_EXPERTS, "q_lora_rank": 11},
        "gemma": _HEAD_DIM,
        "gemma2": {**_HEAD_DIM, **_WINDOW},
        "gemma3_text": {**_HEAD_DIM, **_WINDOW, "num_hidden_layers": 7},
        "glm4_moe": {**_HEAD_DIM, **_GROUPED_EXPERTS},
        "gpt_oss": {**_HEAD_DIM, **_WINDOW, **_LOCAL_EXPERTS},
        "granite": {},
        "llama": _HEAD_DIM,
        "mistral": _WINDOW,
        "mixtral": {**_LOCAL_EXPERTS, **_WINDOW},
        "olmo2": {},
        "olmo3": {**_WINDOW, "num_hidden_layers": 5},
        "olmoe": _EXPERTS,
        "phi3": {},
        "qwen2": _QWEN_WINDOW,
        "qwen2_moe": {**_SHARED_EXPERT, **_SOME_DENSE},
        "qwen3": {**_QWEN_WINDOW, **_HEAD_DIM},
        "qwen3_5_text": _DELTA_NET,
        "qwen3_5_moe_text": {**_DELTA_NET, **_SHARED_EXPERT},
        "qwen3_moe": {**_HEAD_DIM, **_SMALL_EXPERTS, **_SOME_DENSE},
        "qwen3_next": {**_SHARED_EXPERT, **_SOME_DENSE, **_DELTA_NET},
        "seed_oss": _HEAD_DIM,
    }.items()
}
"""Model type → fields of its configuration."""

TINY_VARIANTS: dict[str, dict[str, Any]] = {
    name: {**TINY_MODELS[model_type], **fields}
    for name, model_type, fields in [
        ("deepseek_v2 with a query rank", "deepseek_v2", {"q_lora_rank": 11}),
        ("deepseek_v3 without a query rank", "deepseek_v3", {"q_lora_rank": None}),
        ("deepseek_v3 all dense", "deepseek_v3", {"first_k_dense_replace": 3}),
        ("gemma3_text with declared layers", "gemma3_text", {"layer_types": ["full_attention"] * 7}),
        ("llama with as many key-value heads", "llama", {"num_key_value_heads": None}),
        ("mistral without a window", "mistral", {"sliding_window": None}),
        ("mixtral without a window", "mixtral", {"sliding_window": None}),
        ("phi3 with a window", "phi3", _WINDOW),
        ("qwen2 without its window", "qwen2", {"use_sliding_window": False}),
        ("qwen2_moe with a window", "qwen2_moe", {**_QWEN_WINDOW, "max_window_layers": 3}),
        ("qwen3_moe with a window", "qwen3_moe", _QWEN_WINDOW),
        ("qwen3_moe without its window", "qwen3_moe", _WINDOW),
        ("qwen3_moe without experts", "qwen3_moe", {"num_experts": 0}),
        ("qwen3_next all sparse", "qwen3_next", {"decoder_sparse_step": 1, "mlp_only_layers": None}),
    ]
}
"""The branches that the first table leaves out."""

ALL_TINY_MODELS = TINY_MODELS | TINY_VARIANTS
