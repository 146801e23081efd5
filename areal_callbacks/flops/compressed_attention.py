"""Attention over a window and over compressed keys, with several residual streams (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Iterable

from areal_callbacks.flops.blocks import Macs, projection, unweighted
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields, read_field
from areal_callbacks.flops.layer_types import SLIDING
from areal_callbacks.flops.layers import Layer
from areal_callbacks.flops.masks import Compressed, Sliding

_SELECTED = "compressed_sparse_attention"


def compressed_attention(layer: Layer) -> Iterable[Block]:
    """One key-value head, low-rank queries, a low-rank output in groups; compressed keys by the layer's kind.

    With h, H heads of width D, per token ``h·q + q·H·D + h·D + H·D·r + g·r·h`` for ranks q and r and g groups, and
    ``2·H·D`` per pair, over the window and over the compressed keys. Source: the model's report, section 2.3.
    """
    fields = layer.fields
    hidden, rank = fields.integer("hidden_size"), fields.integer("q_lora_rank")
    width = fields.integer("num_attention_heads") * fields.integer("head_dim")
    output = fields.integer("o_lora_rank") * (width + fields.integer("o_groups") * hidden)
    linear = rank * (hidden + width) + hidden * fields.integer("head_dim") + output
    found = [
        Block(Macs(linear, 2 * width), mask=Sliding(fields.integer("sliding_window", minimum=1)), name="attention"),
        _streams(fields),
    ]
    return found if layer.kind == SLIDING else [*found, *_compressed(layer, width)]


def _compressed(layer: Layer, width: int) -> list[Block]:
    """Keys that stand for several tokens each: an entry and a gate a token, twice where the windows overlap."""
    fields, selects = layer.fields, layer.kind == _SELECTED
    rate = read_field(fields.get("compress_rates"), layer.kind)
    if not isinstance(rate, int):
        raise fields.error(f"'compress_rates' has no rate for {layer.kind!r}")
    series = 4 if selects else 2
    compressor = series * projection(fields.integer("hidden_size"), fields.integer("head_dim"))
    mask = Compressed(rate, fields.integer("index_topk", minimum=1) if selects else None)
    attention = Block(compressor + Macs(per_pair=2 * width), mask=mask, name="compressed attention")
    return [attention, *([_indexer(fields, rate)] if selects else [])]


def _indexer(fields: Fields, rate: int) -> Block:
    """Compressed keys of its own, scored by every head; the weighted sum over heads is elementwise."""
    hidden, heads, width = (fields.integer(name) for name in ("hidden_size", "index_n_heads", "index_head_dim"))
    linear = 4 * hidden * width + fields.integer("q_lora_rank") * heads * width + hidden * heads
    return Block(Macs(linear, heads * width), mask=Compressed(rate), name="indexer")


def _streams(fields: Fields) -> Block:
    """Hyper-connections of n streams: ``(2 + n)·n`` weights from all of them and their mixture, twice a layer."""
    hidden, streams = fields.integer("hidden_size"), fields.integer("hc_mult")
    weights = projection(streams * hidden, (2 + streams) * streams)
    return Block(2 * (weights + unweighted(streams**2 * hidden)), name="hyper-connections")


def stream_head(fields: Fields) -> Iterable[Block]:
    """The collapse of the streams behind the last layer."""
    streams = fields.integer("hc_mult")
    return [Block(projection(streams * fields.integer("hidden_size"), streams), name="hyper-connections")]
