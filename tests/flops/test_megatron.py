"""The estimate from a Megatron configuration, against that from the Hugging Face configuration of the same model."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.flops_references import build_config

from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.flops.megatron import megatron_flops_estimator, unknown_work

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing megatron.core warns about Apex, and about what torch deprecates
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

COMMON = {"hidden_size": 64, "num_attention_heads": 4, "num_layers": 4}
ARCHITECTURES = {
    "llama": (
        {"num_key_value_heads": 2, "intermediate_size": 96, "hidden_size": 64, "num_attention_heads": 4},
        {"num_query_groups": 2, "ffn_hidden_size": 96},
    ),
    "qwen3_moe": (
        {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 96,
            "moe_intermediate_size": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "mlp_only_layers": [0],
        },
        {
            "num_query_groups": 2,
            "kv_channels": 32,
            "ffn_hidden_size": 96,
            "moe_ffn_hidden_size": 24,
            "num_moe_experts": 8,
            "moe_router_topk": 3,
            "moe_layer_freq": [0, 1, 1, 1],
        },
    ),
    "qwen2_moe": (
        {
            "num_key_value_heads": 4,
            "intermediate_size": 96,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 48,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
        },
        {
            "ffn_hidden_size": 96,
            "moe_ffn_hidden_size": 24,
            "num_moe_experts": 8,
            "moe_shared_expert_intermediate_size": 48,
            "moe_shared_expert_gate": True,
        },
    ),
    "deepseek_v3": (
        {
            "num_key_value_heads": 4,
            "intermediate_size": 96,
            "moe_intermediate_size": 24,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
        },
        {
            "latent": True,
            "mtp_num_layers": 1,
            "ffn_hidden_size": 96,
            "moe_ffn_hidden_size": 24,
            "num_moe_experts": 8,
            "moe_shared_expert_intermediate_size": 48,
            "moe_layer_freq": [0, 1, 1, 1],
            "q_lora_rank": 32,
            "kv_lora_rank": 16,
            "qk_head_dim": 12,
            "qk_pos_emb_head_dim": 4,
            "v_head_dim": 8,
        },
    ),
    "gpt_oss": (
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 24,
            "num_local_experts": 8,
            "sliding_window": 8,
        },
        {
            "num_query_groups": 2,
            "kv_channels": 16,
            "ffn_hidden_size": 24,
            "moe_ffn_hidden_size": 24,
            "num_moe_experts": 8,
            "moe_router_topk": 4,
            "window_size": (7, 0),
            "window_attn_skip_freq": 2,
        },
    ),
}
"""Model type → fields of its Hugging Face configuration, fields of the TransformerConfig of the same architecture."""


def transformer_config(**fields: Any) -> Any:
    kind = MLATransformerConfig if fields.pop("latent", False) else TransformerConfig
    defaults = {"activation_func": torch.nn.functional.silu, "gated_linear_unit": True, "add_bias_linear": False}
    return kind(**COMMON, cuda_graph_scope=[], **{**defaults, **fields})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_equals_the_estimate_from_the_hugging_face_configuration(name: str) -> None:
    theirs, ours = ARCHITECTURES[name]
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 500}
    expected = get_flops_estimator(build_config({"model_type": name, **shape, **theirs}))
    assert megatron_flops_estimator(transformer_config(**dict(ours)), vocab_size=500) == expected
    assert expected is not None


def test_parallelism_changes_nothing() -> None:
    _, fields = ARCHITECTURES["qwen3_moe"]
    parallel = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 4}
    alone = megatron_flops_estimator(transformer_config(**fields), vocab_size=500)
    assert megatron_flops_estimator(transformer_config(**fields, **parallel), vocab_size=500) == alone


def test_plain_mlps_have_two_matrices() -> None:
    gated = megatron_flops_estimator(transformer_config(ffn_hidden_size=96), vocab_size=500)
    ungated = transformer_config(ffn_hidden_size=96, gated_linear_unit=False)
    plain = megatron_flops_estimator(ungated, vocab_size=500)
    assert gated is not None
    assert plain is not None
    assert gated(10) - plain(10) == 6 * 10 * 4 * 64 * 96


def test_linear_attention_grows_linearly() -> None:
    hybrid = {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": [1, 1, 1, 0],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "attention_output_gate": True,
        "num_query_groups": 2,
        "kv_channels": 32,
        "ffn_hidden_size": 96,
        "moe_ffn_hidden_size": 24,
        "num_moe_experts": 8,
        "moe_router_topk": 3,
        "moe_shared_expert_intermediate_size": 48,
        "moe_shared_expert_gate": True,
    }
    fields = SimpleNamespace(**COMMON, gated_linear_unit=True, **hybrid)
    theirs = {
        "model_type": "qwen3_next",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "vocab_size": 500,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "moe_intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "shared_expert_intermediate_size": 48,
        **{name: hybrid[name] for name in hybrid if name.startswith("linear_") and name != "linear_attention_freq"},
    }
    expected = get_flops_estimator(build_config(theirs))
    assert megatron_flops_estimator(fields, vocab_size=500) == expected
    fields.linear_attention_freq = 4
    assert megatron_flops_estimator(fields, vocab_size=500) == expected
    fields.experimental_attention_variant = "gdn"
    assert megatron_flops_estimator(fields, vocab_size=500) == expected


@pytest.mark.parametrize(
    ("unknown", "reason"),
    [
        ({"is_hybrid_model": True}, "pattern of the layers"),
        ({"experimental_attention_variant": "dsa"}, "multi_latent_attention only"),
        ({"experimental_attention_variant": "gdn3"}, "formula for experimental_attention_variant='gdn3'"),
        ({"heterogeneous_block_specs": True}, "heterogeneous_block_specs"),
        ({"dsa_indexer_topk_freq": 2}, "dsa_indexer_topk_freq=2"),
    ],
)
def test_unknown_work_is_not_estimated_and_has_a_reason(unknown: dict[str, Any], reason: str) -> None:
    fields = SimpleNamespace(**COMMON, gated_linear_unit=True, ffn_hidden_size=96, **unknown)
    assert megatron_flops_estimator(fields, vocab_size=500) is None
    assert reason in str(unknown_work(fields))


def test_unknown_symbols_of_a_pattern_have_a_reason() -> None:
    fields = SimpleNamespace(**COMMON, ffn_hidden_size=96)
    assert unknown_work(fields) is None
    assert "'X'" in str(unknown_work(fields, hybrid_pattern="M*X-"))
    with pytest.raises(ValueError, match="2 symbols for 4 layers"):
        megatron_flops_estimator(fields, vocab_size=500, hybrid_pattern="M*")


def test_a_pattern_of_the_wrong_length_is_an_error() -> None:
    fields = SimpleNamespace(
        **COMMON, num_query_groups=4, num_moe_experts=8, moe_ffn_hidden_size=24, moe_layer_freq=[1, 0]
    )
    with pytest.raises(ValueError, match=r"'moe_layer_freq' has 2 entries for 4 layers"):
        megatron_flops_estimator(fields, vocab_size=500)
