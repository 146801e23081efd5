"""How the fields of a Megatron ``TransformerConfig`` become the blocks of a layer, and which layer has which.

The readers of fields are those of the table of architectures; only the names of the fields differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from areal_callbacks.flops import blocks
from areal_callbacks.flops.attention import (
    GQA,
    grouped_query_attention,
    multi_head_latent_attention,
    sparse_latent_attention,
)
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.feed_forwards import mlp
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layer_types import FULL, LINEAR, SLIDING
from areal_callbacks.flops.layers import Layer, Stack
from areal_callbacks.flops.mixers import gated_delta_net, gated_delta_net_2

NAMES = {
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "intermediate_size": "ffn_hidden_size",
    "num_experts": "num_moe_experts",
    "num_experts_per_tok": "moe_router_topk",
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "qk_nope_head_dim": "qk_head_dim",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "index_n_heads": "dsa_indexer_n_heads",
    "index_head_dim": "dsa_indexer_head_dim",
    "index_topk": "dsa_indexer_topk",
}
"""Common name of a field → its name in a ``TransformerConfig``."""

SPARSE = "dsa"
LINEAR_VARIANTS = {"gated_delta_net": gated_delta_net, "gdn": gated_delta_net, "gdn2": gated_delta_net_2}
"""``experimental_attention_variant`` → the mixer of its linear layers."""

_GATED_GQA = grouped_query_attention(gated=True)


def variant_of(fields: Fields) -> Any:
    """``experimental_attention_variant``, None for ordinary attention."""
    return fields.get("experimental_attention_variant")


def linear_attention(layer: Layer) -> Macs:
    """The gated delta net that the configuration selects; the first one, unless it says "gdn2"."""
    return LINEAR_VARIANTS.get(variant_of(layer.fields), gated_delta_net)(layer)


def grouped_attention(layer: Layer) -> Macs | Iterable[Block]:
    """Grouped-query attention, with an output gate where ``attention_output_gate`` is set."""
    return (_GATED_GQA if layer.fields.get("attention_output_gate") else GQA)(layer)


def attention(layer: Layer) -> Macs | Iterable[Block]:
    """What the configuration selects for its layers with softmax attention."""
    if variant_of(layer.fields) == SPARSE:
        return sparse_latent_attention(layer)
    if layer.fields.get("multi_latent_attention"):
        return multi_head_latent_attention(layer)
    return grouped_attention(layer)


def dense(layer: Layer) -> Macs | Iterable[Block]:
    """MLP, gated where ``gated_linear_unit`` is set."""
    return mlp(gated=bool(layer.fields.get("gated_linear_unit")), times_hidden=4)(layer)


def experts(layer: Layer) -> Macs:
    """Routed experts, in a latent space where ``moe_latent_size`` is set, and the shared one, if there is any."""
    fields, hidden = layer.fields, layer.fields.integer("hidden_size")
    gated, shared = bool(fields.get("gated_linear_unit")), fields.integer("shared_expert_intermediate_size", default=0)
    routed = blocks.latent_experts(
        hidden_size=hidden,
        latent_size=fields.integer("moe_latent_size", default=0) or None,
        intermediate_size=fields.integer("moe_ffn_hidden_size", "intermediate_size"),
        num_experts=fields.integer("num_experts"),
        num_experts_per_tok=fields.integer("num_experts_per_tok"),
        gated=gated,
    )
    if not shared:
        return routed
    weighted = bool(fields.get("moe_shared_expert_gate"))
    return routed + blocks.shared_expert(
        hidden_size=hidden, intermediate_size=shared, gated=gated, weighted_by_token=weighted
    )


def mamba(layer: Layer) -> Macs:
    """Mamba-2; its convolution has a kernel of 4, for which there is no field."""
    fields, hidden = layer.fields, layer.fields.integer("hidden_size")
    head_dim = fields.integer("mamba_head_dim", minimum=1)
    return blocks.mamba2(
        hidden_size=hidden,
        num_heads=fields.integer("mamba_num_heads", default=2 * hidden // head_dim),
        head_dim=head_dim,
        n_groups=fields.integer("mamba_num_groups"),
        state_size=fields.integer("mamba_state_dim"),
        conv_kernel_size=4,
    )


def _kinds(fields: Fields, layers: int) -> list[str]:
    linear = _pattern(fields, "linear_attention_freq", layers, lambda layer, step: (layer + 1) % step != 0)
    windowed = _pattern(fields, "window_attn_skip_freq", layers, lambda layer, step: (layer + 1) % step != 0)
    has_linear = variant_of(fields) in LINEAR_VARIANTS
    window = fields.sequence("window_size")
    has_window = bool(window) and window is not None and window[0] >= 0
    return [
        LINEAR if has_linear and linear[i] else SLIDING if has_window and windowed[i] else FULL for i in range(layers)
    ]


def _windowed(layer: Layer) -> Macs | Iterable[Block]:
    found = attention(layer)
    if layer.kind != SLIDING or not isinstance(found, Macs):
        return found
    return [Block(found, window=layer.fields.get("window_size")[0] + 1, name="attention")]


def _is_dense(layer: Layer) -> bool:
    fields = layer.fields
    if fields.get("num_experts") is None:
        return True
    layers = fields.integer("num_hidden_layers")
    return not _pattern(fields, "moe_layer_freq", layers, lambda layer, step: layer % step == 0)[layer.index]


def _pattern(fields: Fields, name: str, layers: int, rule: Callable[[int, int], bool]) -> Sequence[Any]:
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


GPT = Stack(_windowed, experts, _kinds, is_dense=_is_dense, dense=dense, mixers={LINEAR: linear_attention}, names=NAMES)
"""The layers of GPT, and of BERT and T5 with other masks."""
