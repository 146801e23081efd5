"""Blocks of single families of transformers that no other family has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from areal_callbacks.flops import blocks
from areal_callbacks.flops.attention import multi_head_latent_attention
from areal_callbacks.flops.blocks import Macs, projection, unweighted
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.feed_forwards import experts, mlp
from areal_callbacks.flops.fields import Fields, read_field
from areal_callbacks.flops.layer_types import FULL, SLIDING
from areal_callbacks.flops.layers import Layer
from areal_callbacks.flops.masks import CAUSAL


def falcon_attention(layer: Layer) -> Macs:
    """Grouped in the new decoder architecture, else one key-value head or as many as queries."""
    fields = layer.fields
    heads = fields.integer("num_attention_heads", minimum=1)
    grouped = heads
    if fields.get("new_decoder_architecture"):
        grouped = fields.integer("num_kv_heads", default=heads)
    elif fields.get("multi_query"):
        grouped = 1
    return _attention(layer, num_key_value_heads=grouped)


def mimo_attention(layer: Layer) -> Macs:
    """Values narrower than keys; sliding layers have twice the key-value heads of full ones (MiMo-V2-Flash)."""
    fields = layer.fields
    grouped = fields.integer("num_key_value_heads") * (2 if layer.kind == SLIDING else 1)
    return _attention(layer, num_key_value_heads=grouped, v_head_dim=fields.integer("v_head_dim"))


def _attention(layer: Layer, *, num_key_value_heads: int, v_head_dim: int | None = None) -> Macs:
    fields = layer.fields
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", minimum=1)
    return blocks.grouped_query_attention(
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=fields.integer("head_dim", default=hidden // heads),
        v_head_dim=v_head_dim,
    )


def shares_keys(layer: Layer) -> bool:
    """Whether a layer attends to the keys and values of an earlier one (the last ``num_kv_shared_layers``)."""
    fields = layer.fields
    first = fields.integer("num_hidden_layers") - fields.integer("num_kv_shared_layers", default=0)
    return layer.index >= first


def gemma3n_attention(layer: Layer) -> Macs:
    """Without key and value projections in layers that share those of an earlier one."""
    grouped = layer.fields.integer("num_key_value_heads")
    return _attention(layer, num_key_value_heads=0 if shares_keys(layer) else grouped)


def gemma3n_layer_parts(layer: Layer) -> Iterable[Block]:
    """MLP, per-layer input, LAuReL and AltUp of Gemma 3n (arXiv 2411.07501, 2301.13310).

    AltUp with n streams: a router that is applied before and after the layer (``2·h·n``), coefficients ``n·n²`` and
    ``n·n``, and the mixture of the streams ``n²·h``.
    """
    fields = layer.fields
    hidden, streams = fields.integer("hidden_size"), fields.integer("altup_num_inputs")
    per_layer, rank = fields.integer("hidden_size_per_layer_input"), fields.integer("laurel_rank")
    router = Macs(2 * hidden * streams, unused=-hidden * streams)
    coefficients = Macs(streams**3 + streams**2) + unweighted(streams**2 * hidden)
    low_rank = Macs(2 * hidden * (rank + per_layer))
    feed_forward = mlp()(layer)
    assert isinstance(feed_forward, Macs)
    return [Block(feed_forward, name="mlp"), Block(router + coefficients + low_rank, name="altup and laurel")]


def gemma3n_outside(fields: Fields) -> Iterable[Block]:
    """Projections of the per-layer inputs and of the other AltUp streams, in and out."""
    hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
    streams = 2 * (fields.integer("altup_num_inputs") - 1) * projection(hidden, hidden)
    return [_per_layer_inputs(hidden, layers, fields), Block(streams, name="altup projections")]


def _per_layer_inputs(hidden: int, layers: int, fields: Fields) -> Block:
    width = fields.integer("hidden_size_per_layer_input", default=0)
    return Block(projection(hidden, layers * width), name="per-layer inputs")


def gemma4_attention(layer: Layer) -> Macs:
    """Full layers have heads of their own width and may use their keys as values (``attention_k_eq_v``)."""
    fields = layer.fields
    head_dim, grouped = (_of_layer(layer, name) for name in ("head_dim", "num_key_value_heads"))
    macs = blocks.grouped_query_attention(
        hidden_size=fields.integer("hidden_size"),
        num_attention_heads=fields.integer("num_attention_heads"),
        num_key_value_heads=0 if shares_keys(layer) else grouped,
        head_dim=head_dim,
    )
    if fields.get("attention_k_eq_v") and layer.kind == FULL and not shares_keys(layer):
        return macs + Macs(-fields.integer("hidden_size") * grouped * head_dim)
    return macs


_GLOBAL = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}


def _of_layer(layer: Layer, name: str) -> int:
    """A field that ``per_layer_config`` may override; older files name the values of all full layers."""
    overrides: Any = layer.fields.get("per_layer_config")
    if overrides is None:
        own = layer.fields.get(_GLOBAL[name]) if layer.kind == FULL else None
        return layer.fields.integer(name) if own is None else int(own)
    own = overrides.get(layer.index, overrides.get(str(layer.index))) if isinstance(overrides, dict) else None
    value = read_field(overrides[layer.index] if own is None and not isinstance(overrides, dict) else own or {}, name)
    return value if isinstance(value, int) else layer.fields.integer(name)


def gemma4_layer_parts(layer: Layer) -> Iterable[Block]:
    """Dense MLP, routed experts beside it where ``enable_moe_block``, and the per-layer input."""
    fields = layer.fields
    hidden, per_layer = fields.integer("hidden_size"), fields.integer("hidden_size_per_layer_input", default=0)
    wide = 2 if fields.get("use_double_wide_mlp") and shares_keys(layer) else 1
    dense = blocks.feed_forward(hidden_size=hidden, intermediate_size=wide * fields.integer("intermediate_size"))
    found = [Block(dense, name="mlp")]
    if fields.get("enable_moe_block"):
        routed = experts()(layer)
        assert isinstance(routed, Macs)
        found.append(Block(routed, name="experts"))
    return [*found, Block(Macs(2 * hidden * per_layer), name="per-layer inputs")] if per_layer else found


def gemma4_outside(fields: Fields) -> Iterable[Block]:
    """Projection of the per-layer inputs."""
    return [_per_layer_inputs(fields.integer("hidden_size"), fields.integer("num_hidden_layers"), fields)]


def ernie_dense(layer: Layer) -> bool:
    """Dense outside moe_layer_start_index … moe_layer_end_index and off moe_layer_interval (ERNIE 4.5)."""
    fields, last = layer.fields, layer.fields.get("moe_layer_end_index", -1)
    end = fields.integer("num_hidden_layers") - 1 if last == -1 else last
    inside = fields.integer("moe_layer_start_index") <= layer.index <= end
    return not inside or (layer.index + 1) % fields.integer("moe_layer_interval", minimum=1) != 0


def llama4_dense(layer: Layer) -> bool:
    """Dense where ``moe_layers`` does not list the layer; without the list, every interleave step has experts."""
    listed = layer.fields.sequence("moe_layers")
    if listed is not None:
        return layer.index not in listed
    return (layer.index + 1) % layer.fields.integer("interleave_moe_layer_step", minimum=1) != 0


def mixture_of_attention_heads(layer: Layer) -> Iterable[Block]:
    """Attention whose query and output projections are experts (JetMoE, arXiv 2404.07413, section 2.2)."""
    fields = layer.fields
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_key_value_heads")
    width = heads * fields.integer("kv_channels")
    number, selected = fields.integer("num_local_experts"), fields.integer("num_experts_per_tok")
    routed = blocks.routed_experts(
        hidden_size=hidden, intermediate_size=width, num_experts=number, num_experts_per_tok=selected, gated=False
    )
    return [Block(routed + Macs(2 * hidden * width, 2 * selected * width), mask=CAUSAL, name="attention")]


def two_latent_attentions(layer: Layer) -> Iterable[Block]:
    """The two attention blocks of a LongCat-Flash layer, each followed by a dense MLP (arXiv 2509.01322)."""
    dense, attention = mlp()(layer), multi_head_latent_attention(layer)
    assert isinstance(dense, Macs)
    return [Block(2 * attention, name="attention"), Block(2 * dense, name="mlp")]


def experts_beside_zero_experts(layer: Layer) -> Macs:
    """Experts of which some, the ``zero_expert_num`` last, put out their input (LongCat-Flash).

    How many real ones a token selects depends on the router: counted is the share that they have of all.
    """
    fields, hidden = layer.fields, layer.fields.integer("hidden_size")
    real, zero = fields.integer("n_routed_experts"), fields.integer("zero_expert_num", default=0)
    size = fields.integer("moe_intermediate_size")
    expert = blocks.feed_forward(hidden_size=hidden, intermediate_size=size).per_token
    selected = fields.integer("num_experts_per_tok") * expert * real // (real + zero)
    return Macs(hidden * (real + zero) + selected, unused=real * expert - selected)


def dbrx_attention(layer: Layer) -> Macs:
    """Grouped-query attention with its key-value heads in ``attn_config`` (DBRX)."""
    return _attention(layer, num_key_value_heads=layer.fields.part("attn_config").integer("kv_n_heads"))


def dbrx_experts(layer: Layer) -> Macs:
    """Routed experts with their sizes in ``ffn_config`` (DBRX)."""
    sizes = layer.fields.part("ffn_config")
    return blocks.routed_experts(
        hidden_size=layer.fields.integer("hidden_size"),
        intermediate_size=sizes.integer("ffn_hidden_size"),
        num_experts=sizes.integer("moe_num_experts"),
        num_experts_per_tok=sizes.integer("moe_top_k"),
    )
