"""Blocks of single hybrid families, whose layers mix several parts."""

from __future__ import annotations

from collections.abc import Iterable

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layer_types import FULL, LINEAR, Rule
from areal_callbacks.flops.layers import Layer
from areal_callbacks.flops.mixers import mamba2


def adjusted_mlp(layer: Layer) -> Macs:
    """MLP of LFM2: two thirds of ``intermediate_size``, scaled and rounded up, where ``block_auto_adjust_ff_dim``."""
    fields = layer.fields
    size = fields.integer("intermediate_size")
    if fields.get("block_auto_adjust_ff_dim", True):
        size = int(2 * size / 3)
        if (multiplier := fields.get("block_ffn_dim_multiplier")) is not None:
            multiple = fields.integer("block_multiple_of", minimum=1)
            size = multiple * -(-int(multiplier * size) // multiple)
    return blocks.feed_forward(hidden_size=fields.integer("hidden_size"), intermediate_size=size)


def rounded_mlp(layer: Layer) -> Macs:
    """MLP of xLSTM: ``ffn_proj_factor`` hidden sizes, rounded up to a multiple of ``ffn_round_up_to_multiple_of``."""
    fields = layer.fields
    hidden, multiple = fields.integer("hidden_size"), fields.integer("ffn_round_up_to_multiple_of", minimum=1)
    size = multiple * int((hidden * fields.get("ffn_proj_factor") + multiple - 1) // multiple)
    return blocks.feed_forward(hidden_size=hidden, intermediate_size=size)


def halved_mlp(layer: Layer) -> Macs:
    """MLP of Griffin: ``intermediate_size`` counts both of the gated halves."""
    return blocks.feed_forward(
        hidden_size=layer.fields.integer("hidden_size"),
        intermediate_size=layer.fields.integer("intermediate_size") // 2,
    )


def latent_experts(layer: Layer) -> Macs:
    """Ungated experts of Nemotron-H, in a latent space if ``moe_latent_size`` is set, and one shared expert."""
    fields = layer.fields
    hidden = fields.integer("hidden_size")
    routed = blocks.latent_experts(
        hidden_size=hidden,
        latent_size=fields.integer("moe_latent_size", default=0) or None,
        intermediate_size=fields.integer("moe_intermediate_size"),
        num_experts=fields.integer("n_routed_experts"),
        num_experts_per_tok=fields.integer("num_experts_per_tok"),
        gated=False,
    )
    return routed + blocks.shared_expert(
        hidden_size=hidden, intermediate_size=fields.integer("moe_shared_expert_intermediate_size"), gated=False
    )


def shared_transformer(layer: Layer) -> Iterable[Block]:
    """Hybrid layer of Zamba-2: a transformer block that several layers share, a projection, and Mamba-2.

    Attention reads twice the hidden size: the hidden state beside the embeddings. The low-rank adapters of the MLP (and
    of attention, if ``use_shared_attention_adapter``) are each layer's own. Source: arXiv 2411.15242.
    """
    fields = layer.fields
    hidden, rank = fields.integer("hidden_size"), fields.integer("adapter_rank")
    intermediate = fields.integer("intermediate_size")
    attention = _wide_attention(fields)
    mlp = blocks.feed_forward(hidden_size=hidden, intermediate_size=intermediate)
    adapters = rank * (hidden + 2 * intermediate)
    if fields.get("use_shared_attention_adapter"):
        adapters += 3 * 2 * rank * fields.integer("attention_hidden_size")
    again = list(fields.sequence("hybrid_layer_ids") or ()).index(layer.index) >= fields.integer("num_mem_blocks")
    reused = Macs(unused=-(attention + mlp).weights) if again else Macs()
    return [
        Block(attention, name="attention"),
        Block(mlp + Macs(adapters + hidden * hidden) + reused, name="mlp"),
        Block(mamba2(layer), name=LINEAR),
    ]


def _wide_attention(fields: Fields) -> Macs:
    heads, head_dim = fields.integer("num_attention_heads"), fields.integer("attention_head_dim")
    inputs, outputs = fields.integer("attention_hidden_size"), fields.integer("hidden_size")
    grouped = fields.integer("num_key_value_heads")
    projections = head_dim * (inputs * (heads + 2 * grouped) + outputs * heads)
    return Macs(projections, 2 * heads * head_dim)


def attention_every(period: str, offset: str) -> Rule:
    """Full attention where (layer − offset) is a multiple of the period, Mamba elsewhere (Jamba)."""

    def rule(fields: Fields, layers: int) -> list[str]:
        step, first = fields.integer(period, minimum=1), fields.integer(offset)
        return [FULL if layer % step == first else LINEAR for layer in range(layers)]

    return rule


def dense_off_period(layer: Layer) -> bool:
    """Whether a layer of Jamba has a dense MLP: off its ``expert_layer_period`` or with one expert."""
    fields = layer.fields
    if fields.integer("num_experts", "num_local_experts") < 2:
        return True
    return layer.index % fields.integer("expert_layer_period", minimum=1) != fields.integer("expert_layer_offset")


def translate(kinds: dict[str, str]) -> Rule:
    """``layer_types`` with the words of older files in those of today."""

    def rule(fields: Fields, layers: int) -> list[str]:
        declared = fields.sequence("layer_types")
        if declared is None:
            raise fields.error(f"the configuration lacks {fields.own_name('layer_types')!r}")
        if len(declared) != layers:
            raise fields.error(f"{fields.own_name('layer_types')!r} has {len(declared)} entries for {layers} layers")
        return [kinds.get(kind, kind) for kind in declared]

    return rule
