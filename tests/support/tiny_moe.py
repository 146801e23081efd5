"""Tiny models of every mixture-of-experts family of transformers, built from their configurations."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel

FAMILIES = [
    "afmoe",
    "aria_text",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "beam",
    "cohere2_moe",
    "dbrx",
    "deepseek_ocr2_text",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "diffusion_gemma_text",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "gemma4_text",
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe_text",
    "glm_moe_dsa",
    "gpt_oss",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "hy_v4_vl_text",
    "inkling2_loop_text",
    "inkling2_text",
    "inkling_text",
    "jamba",
    "jetmoe",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "lara_mini",
    "lfm2_moe",
    "llama4_text",
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "mistral4",
    "mistral_large4_text",
    "mixtral",
    "muse_spark_text",
    "nemotron_h",
    "nllb-moe",
    "olmoe",
    "openai_privacy_filter",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe_text",
    "qwen3_vl_moe_text",
    "solar_open",
    "step3p5",
    "switch_transformers",
    "unlimited_ocr_text",
    "zaya",
]
"""Model types that a test trains a step of."""

NOT_COVERED = {
    "doge": "retrieves its experts from product keys inside the block's forward: no module puts the choice out",
    "dots3_note": "no tiny configuration: the routers follow the index contract",
    "ernie4_5_vl_moe": "no tiny configuration: the routers follow the index contract",
    "glm5_next": "no tiny configuration: the routers follow the index contract",
    "granite_docling": "its DensityRouter chooses an image path, not experts",
    "qwen4_exp": "no tiny configuration: the routers follow the index contract",
}
"""Folders with a router that no test covers, and why."""

SMALL: dict[str, Any] = {
    # width and depth
    **dict.fromkeys(("hidden_size", "d_model", "d_ff", "intermediate_size", "ffn_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "decoder_layers", "encoder_layers"), 4),
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # experts
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 8),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts"), 2
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("expert_hidden_size", "moe_expert_hidden_size", "expert_ffn_hidden_size", "expert_dim"), 32),
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "interleave_moe_layer_step": 1,
    "enable_moe_block": True,
    "num_nextn_predict_layers": 0,
    # attention
    **dict.fromkeys(("num_attention_heads", "n_heads", "num_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "sliding_window": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    # linear attention and state spaces
    **dict.fromkeys(("linear_num_key_heads", "n_groups"), 2),
    **dict.fromkeys(("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head"), 32),
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 96,
}
"""Applied to every configuration that has the field."""

LATENT_ATTENTION: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 8}
"""Applied to multi-head latent attention, whose rotary part is all that has heads of its own."""

SPECIAL: dict[str, dict[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"moe_num_experts": 8, "moe_top_k": 2, "ffn_hidden_size": 32, "hidden_size": 64},
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["sparse"] * 4},
    "dots1": {"n_shared_experts": 1},
    "glm4v_moe_text": {"head_dim": 128},
    "hy_v4_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "inkling_text": {"rel_extent": 16},
    "inkling2_text": {"rel_extent": 16, "unpadded_vocab_size": 96},
    "inkling2_loop_text": {
        "rel_extent": 16,
        "unpadded_vocab_size": 96,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
        "loop_num_passes": 3,
        "n_layers_per_attn_res_block": 2,
    },
    "lfm2_moe": {"layer_types": ["full_attention"] * 4},
    "longcat_flash": {"zero_expert_num": 2},
    "muse_spark_text": {"moe_hidden_size": 32},
    "nllb-moe": {
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "router_ignore_padding_tokens": True,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    },
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a family needs beyond: fields set, or left at their defaults where the value is ``...``."""


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The configuration of a family, small enough for a test."""
    config_class = CONFIG_MAPPING[model_type]
    fields = inspect.signature(config_class).parameters
    values = dict(SMALL)
    if "qk_rope_head_dim" in fields:
        values |= LATENT_ATTENTION
    values = {name: value for name, value in values.items() if name in fields} | SPECIAL.get(model_type, {})
    config = config_class(**{name: value for name, value in values.items() if value is not ...})
    config.use_cache = False
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def tiny_model(model_type: str) -> PreTrainedModel:
    """A model of a family with random weights from a fixed seed, in training mode."""
    config = tiny_config(model_type)
    torch.manual_seed(0)
    return model_class(model_type)(config).train()


def model_class(model_type: str) -> type[PreTrainedModel]:
    """The model with a language-modelling head where there is one, else the bare model, by its configuration class."""
    config_class = CONFIG_MAPPING[model_type]
    modeling = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    classes: list[Any] = [
        item
        for item in vars(modeling).values()
        if inspect.isclass(item)
        and issubclass(item, PreTrainedModel)
        and item.__module__ == modeling.__name__
        and getattr(item, "config_class", None) is config_class
        and not item.__name__.endswith("PreTrainedModel")
    ]
    heads = ("ForCausalLM", "ForConditionalGeneration", "ForTokenClassification", "Model")
    found: type[PreTrainedModel] = next(item for head in heads for item in classes if item.__name__.endswith(head))
    return found


def routed_folders() -> set[str]:
    """The folders of transformers' models whose modeling file defines a router of experts."""
    definition = re.compile(r"^class \w*(?:Router|TopKGating|MoEV1Gate|CDMoE)\(", re.MULTILINE)
    files = (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")
    return {file.parent.name for file in files if definition.search(file.read_text("utf-8"))}


def folder_of(model_type: str) -> str:
    """The folder of a model type in transformers' models."""
    return str(CONFIG_MAPPING[model_type].__module__.split(".")[2])
