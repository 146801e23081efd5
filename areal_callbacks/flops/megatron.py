"""From a Megatron ``TransformerConfig`` to the same estimate as from a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block, TrainingFlops, training_flops
from areal_callbacks.flops.fields import Fields

_LINEAR_ATTENTION = "gated_delta_net"
_UNKNOWN_WORK = ("heterogeneous_block_specs", "is_hybrid_model", "moe_latent_size")


def megatron_flops_estimator(config: Any, *, vocab_size: int) -> TrainingFlops | None:
    """Training FLOPs of one sequence of a GPT model; multi-token-prediction layers are left out.

    Parallelism plays no part: every field that is read describes the whole model.

    Args:
        config: a ``TransformerConfig`` or ``MLATransformerConfig`` of megatron.core.
        vocab_size: rows of the language-model head. Megatron pads them for tensor parallelism; a Hugging Face
            configuration names them without padding.

    Returns:
        The estimator, or None for a structure whose work is not known: heterogeneous and hybrid (Mamba) models, experts
        in a latent space, sparse attention.

    Raises:
        ValueError: the configuration lacks a field or has a malformed one.
    """
    fields = Fields(config, type(config).__name__)
    if any(fields.get(name) for name in _UNKNOWN_WORK):
        return None
    if fields.get("experimental_attention_variant") not in (None, _LINEAR_ATTENTION):
        return None
    number = fields.integer("num_layers", minimum=1)
    linear = _pattern(fields, "linear_attention_freq", number, lambda layer, step: (layer + 1) % step != 0)
    windowed = _pattern(fields, "window_attn_skip_freq", number, lambda layer, step: (layer + 1) % step != 0)
    sparse = _pattern(fields, "moe_layer_freq", number, lambda layer, step: layer % step == 0)
    window, has_experts = fields.sequence("window_size"), fields.get("num_moe_experts") is not None
    has_linear = fields.get("experimental_attention_variant") == _LINEAR_ATTENTION
    layers = []
    for layer in range(number):
        feed_forward = _experts(fields) if has_experts and sparse[layer] else _dense(fields)
        if has_linear and linear[layer]:
            layers.append(Block(_gated_delta_net(fields) + feed_forward))
        else:
            seen = window[0] + 1 if window and windowed[layer] and window[0] >= 0 else None
            layers.append(Block(_attention(fields) + feed_forward, seen))
    head = blocks.language_model_head(hidden_size=fields.integer("hidden_size"), vocab_size=vocab_size)
    return training_flops(layers, head)


def _pattern(fields: Fields, name: str, layers: int, rule: Any) -> Sequence[Any]:
    """Which layers are of a kind: a list with one entry per layer, or a step that ``rule(layer, step)`` reads."""
    value = fields.get(name)
    if value is None:
        return [True] * layers
    if isinstance(value, int):
        step = fields.integer(name, minimum=1)
        return [rule(layer, step) for layer in range(layers)]
    declared = fields.sequence(name) or ()
    if len(declared) != layers:
        raise fields.error(f"{name!r} has {len(declared)} entries for {layers} layers")
    return declared


def _attention(fields: Fields) -> Macs:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", minimum=1)
    if fields.get("multi_latent_attention"):
        return blocks.multi_head_latent_attention(
            hidden_size=hidden,
            num_attention_heads=heads,
            q_lora_rank=fields.nullable_integer("q_lora_rank", null=None),
            kv_lora_rank=fields.integer("kv_lora_rank"),
            qk_nope_head_dim=fields.integer("qk_head_dim"),
            qk_rope_head_dim=fields.integer("qk_pos_emb_head_dim"),
            v_head_dim=fields.integer("v_head_dim"),
        )
    return blocks.grouped_query_attention(
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_query_groups", default=heads),
        head_dim=fields.integer("kv_channels", default=hidden // heads),
        gated=bool(fields.get("attention_output_gate")),
    )


def _gated_delta_net(fields: Fields) -> Macs:
    return blocks.gated_delta_net(
        hidden_size=fields.integer("hidden_size"),
        num_key_heads=fields.integer("linear_num_key_heads"),
        num_value_heads=fields.integer("linear_num_value_heads"),
        key_head_dim=fields.integer("linear_key_head_dim"),
        value_head_dim=fields.integer("linear_value_head_dim"),
        conv_kernel_size=fields.integer("linear_conv_kernel_dim"),
    )


def _dense(fields: Fields) -> Macs:
    hidden = fields.integer("hidden_size")
    return blocks.feed_forward(
        hidden_size=hidden,
        intermediate_size=fields.integer("ffn_hidden_size", default=4 * hidden),
        gated=bool(fields.get("gated_linear_unit")),
    )


def _experts(fields: Fields) -> Macs:
    hidden, gated = fields.integer("hidden_size"), bool(fields.get("gated_linear_unit"))
    routed = blocks.routed_experts(
        hidden_size=hidden,
        intermediate_size=fields.integer("moe_ffn_hidden_size", "ffn_hidden_size"),
        num_experts=fields.integer("num_moe_experts"),
        num_experts_per_tok=fields.integer("moe_router_topk"),
        gated=gated,
    )
    shared = fields.integer("moe_shared_expert_intermediate_size", default=0)
    if not shared:
        return routed
    return routed + blocks.shared_expert(
        hidden_size=hidden,
        intermediate_size=shared,
        gated=gated,
        weighted_by_token=bool(fields.get("moe_shared_expert_gate")),
    )
