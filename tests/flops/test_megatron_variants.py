"""Hybrids, sparse attention, BERT, T5 and further tokens of Megatron, against the Hugging Face formulas or by hand."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.flops_references import build_config

from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.flops.megatron import megatron_flops_estimator, megatron_t5_flops_estimator

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing megatron.core warns about Apex, and about what torch deprecates
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

COMMON = {"hidden_size": 64, "num_attention_heads": 4, "num_layers": 4}


def transformer_config(kind: Any = TransformerConfig, **fields: Any) -> Any:
    defaults = {"activation_func": torch.nn.functional.silu, "gated_linear_unit": True, "add_bias_linear": False}
    return kind(**COMMON, cuda_graph_scope=[], **{**defaults, **fields})


@pytest.mark.parametrize("latent", [None, 24])
def test_hybrid_models_equal_the_hugging_face_formula(latent: int | None) -> None:
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 32}
    ours = transformer_config(
        **mamba,
        mamba_state_dim=16,
        mamba_num_groups=2,
        num_query_groups=2,
        kv_channels=16,
        ffn_hidden_size=96,
        moe_ffn_hidden_size=24,
        num_moe_experts=8,
        moe_router_topk=3,
        moe_shared_expert_intermediate_size=48,
        moe_latent_size=latent,
        gated_linear_unit=False,
        is_hybrid_model=True,
    )
    theirs = {
        "model_type": "nemotron_h",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 500,
        "layers_block_type": ["mamba", "attention", "mlp", "moe"],
        **mamba,
        "ssm_state_size": 16,
        "n_groups": 2,
        "conv_kernel": 4,
        "intermediate_size": 96,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_shared_expert_intermediate_size": 48,
        "moe_latent_size": latent,
    }
    expected = get_flops_estimator(build_config(theirs))
    assert expected is not None
    assert megatron_flops_estimator(ours, vocab_size=500, hybrid_pattern="M*-E") == expected


def test_sparse_attention_equals_the_hugging_face_formula() -> None:
    latent = {"q_lora_rank": 32, "kv_lora_rank": 16, "v_head_dim": 8}
    theirs = {
        "model_type": "deepseek_v32",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "vocab_size": 500,
        "intermediate_size": 96,
        "mlp_layer_types": ["dense"] * 4,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 4,
        **latent,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "index_topk": 3,
    }
    ours = transformer_config(MLATransformerConfig, ffn_hidden_size=96, qk_head_dim=12, qk_pos_emb_head_dim=4, **latent)
    sparse = {"dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 8, "dsa_indexer_topk": 3}
    fields = SimpleNamespace(**vars(ours) | sparse | {"experimental_attention_variant": "dsa"})
    expected = get_flops_estimator(build_config(theirs))
    assert expected is not None
    assert megatron_flops_estimator(fields, vocab_size=500) == expected


def test_bert_equals_the_hugging_face_formula() -> None:
    ours = transformer_config(ffn_hidden_size=96, gated_linear_unit=False)
    theirs = {
        "model_type": "bert",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "intermediate_size": 96,
        "vocab_size": 500,
    }
    assert megatron_flops_estimator(ours, vocab_size=500, bidirectional=True) == get_flops_estimator(theirs)


def test_t5_equals_the_hugging_face_formula() -> None:
    common = {"kv_channels": 24, "ffn_hidden_size": 96, "gated_linear_unit": False}
    encoder, decoder = transformer_config(**common), transformer_config(**common)
    encoder.num_layers = 3
    theirs = {
        "model_type": "t5",
        "d_model": 64,
        "num_heads": 4,
        "d_kv": 24,
        "num_layers": 3,
        "num_decoder_layers": 4,
        "d_ff": 96,
        "feed_forward_proj": "relu",
        "vocab_size": 500,
    }
    estimate = megatron_t5_flops_estimator(encoder, decoder, vocab_size=500)
    assert estimate is not None
    assert estimate == get_flops_estimator(theirs)
    assert megatron_t5_flops_estimator(SimpleNamespace(heterogeneous_block_specs=True), decoder, vocab_size=5) is None


def test_further_tokens_are_counted_on_demand() -> None:
    """By hand: the last layer again, two hidden states to one, the head."""
    fields = {"num_query_groups": 2, "ffn_hidden_size": 96, "mtp_num_layers": 2}
    config = SimpleNamespace(**COMMON, gated_linear_unit=True, **fields)
    without = megatron_flops_estimator(config, vocab_size=500)
    with_them = megatron_flops_estimator(config, vocab_size=500, multi_token_prediction=True)
    assert without is not None
    assert with_them is not None
    layer = 10 * (64 * 16 * (4 * 2 + 2 * 2) + 3 * 64 * 96) + 55 * 2 * 64
    assert with_them(10) - without(10) == 6 * 2 * (layer + 10 * (2 * 64 * 64 + 64 * 500))


DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
}


def test_a_delta_net_with_gates_for_each_channel_by_hand() -> None:
    """Keys 12 and values 40 wide: projections, output, convolution, three 6 by 10 products for each of 4 heads."""
    config = SimpleNamespace(
        **COMMON, **DELTA_NET, ffn_hidden_size=96, experimental_attention_variant="gdn2", linear_attention_freq=[1] * 4
    )
    found = megatron_flops_estimator(config, vocab_size=500)
    mixer = 64 * (4 * 12 + 3 * 40) + 40 * 64 + 3 * (2 * 12 + 40) + 3 * 4 * 6 * 10
    assert found is not None
    assert found(7) == 6 * 7 * (4 * (mixer + 2 * 64 * 96) + 64 * 500)


def test_patterns_mix_every_kind_of_layer() -> None:
    """Each symbol adds what the same layer adds in a model of one kind; pipes mean nothing."""
    latent = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_head_dim": 12, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}
    sparse = {"dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 8, "dsa_indexer_topk": 3}
    config = SimpleNamespace(
        **(COMMON | {"num_layers": 4}), **DELTA_NET, **latent, **sparse, num_query_groups=2, ffn_hidden_size=96
    )
    found = megatron_flops_estimator(config, vocab_size=500, hybrid_pattern="G*|+D")
    delta_net = 64 * (2 * 12 + 2 * 40 + 2 * 4) + 40 * 64 + 3 * (2 * 12 + 40) + 3 * 4 * 6 * 10
    grouped = 64 * 16 * (2 * 4 + 2 * 2)
    compressed = 64 * 32 + 32 * 4 * 16 + 64 * (16 + 4) + 16 * 4 * (12 + 8) + 4 * 8 * 64
    indexer = 32 * 2 * 8 + 64 * 8 + 64 * 2
    linear = 7 * (delta_net + grouped + 2 * compressed + indexer + 64 * 500)
    pairs = 28 * (2 * 64 + 4 * (16 + 8) + 2 * 8 + 2) + (6 + 4 * 3) * 4 * (16 + 8)
    assert found is not None
    assert found(7) == 6 * (linear + pairs)


def test_further_tokens_of_a_pattern_are_counted_on_demand() -> None:
    """By hand: two times one attention layer, two hidden states to one, the head."""
    config = SimpleNamespace(**(COMMON | {"num_layers": 2}), num_query_groups=2, ffn_hidden_size=96)
    pattern = "*-/*/*"
    without = megatron_flops_estimator(config, vocab_size=500, hybrid_pattern=pattern)
    with_them = megatron_flops_estimator(config, vocab_size=500, hybrid_pattern=pattern, multi_token_prediction=True)
    assert without is not None
    assert with_them is not None
    layer = 10 * 64 * 16 * (4 * 2 + 2 * 2) + 55 * 2 * 64
    assert with_them(10) - without(10) == 6 * 2 * (layer + 10 * (2 * 64 * 64 + 64 * 500))
