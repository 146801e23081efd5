"""Published models with their dimensions, for tests that compare against known integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import CONFIG_MAPPING

REFERENCE_MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
    },
    "Qwen3.5-35B-A3B": {"model_type": "qwen3_5_moe_text"},
    "Llama-3-8B": {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "DeepSeek-V3": {"model_type": "deepseek_v3"},
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
    "Qwen3-8B": {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "Mixtral-8x7B": {"model_type": "mixtral"},
    "Qwen3-Next-80B-A3B": {"model_type": "qwen3_next"},
    "Gemma-3-4B (text)": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
}
"""Name → fields; what is left out has the published value as the default of its configuration class."""


def build_config(fields: dict[str, Any]) -> Any:
    """A Hugging Face configuration of ``fields["model_type"]``."""
    config_class: Callable[..., Any] = CONFIG_MAPPING[fields["model_type"]]
    return config_class(**{name: value for name, value in fields.items() if name != "model_type"})
