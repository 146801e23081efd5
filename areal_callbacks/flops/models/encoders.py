"""Rows of bidirectional encoders, and of decoders built like them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from areal_callbacks.flops.attention import GQA, MHA, disentangled_attention, grouped_query_attention
from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.feed_forwards import GATED_MLP, PLAIN_MLP, PLAIN_MLP_4, mlp
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.heads import masked_language_model_head
from areal_callbacks.flops.layer_types import declared
from areal_callbacks.flops.layers import Layer, Stack
from areal_callbacks.flops.masks import BIDIRECTIONAL

_Encoder = partial(Stack, bidirectional=True, head=masked_language_model_head())
_BERT = _Encoder(MHA, PLAIN_MLP)


def _embedding_projection(fields: Fields) -> Block:
    width, hidden = fields.integer("embedding_size"), fields.integer("hidden_size")
    return Block(projection(width, hidden), name="embedding projection")


def _projection_if_other_width(fields: Fields) -> Iterable[Block]:
    same = fields.integer("embedding_size") == fields.integer("hidden_size")
    return [] if same else [_embedding_projection(fields)]


def _shared_layers(layer: Layer) -> Iterable[Block]:
    """A layer of ALBERT: all layers of a group have the same weights, and the work of each is counted."""
    attention, feed_forward = MHA(layer), PLAIN_MLP(layer)
    assert isinstance(attention, Macs)
    assert isinstance(feed_forward, Macs)
    repeated = layer.index >= layer.fields.integer("num_hidden_groups", default=1)
    reused = Macs(unused=-(attention + feed_forward).weights) if repeated else Macs()
    blocks = [Block(attention + reused, mask=BIDIRECTIONAL, name="attention"), Block(feed_forward, name="mlp")]
    return layer.fields.integer("inner_group_num", default=1) * blocks


def _convolution_if_any(fields: Fields) -> Iterable[Block]:
    """DeBERTa-v2: a convolution over the output of the first layer, where ``conv_kernel_size`` is set."""
    kernel, hidden = fields.integer("conv_kernel_size", default=0), fields.integer("hidden_size")
    groups = fields.integer("conv_groups", default=1, minimum=1)
    return [Block(projection(kernel * hidden, hidden // groups), name="convolution")] if kernel else []


_ELECTRA = _Encoder(
    MHA,
    PLAIN_MLP,
    outside=_projection_if_other_width,
    head=masked_language_model_head(embedding_size="embedding_size"),
)

_XLM = Stack(
    MHA,
    PLAIN_MLP_4,
    names={"hidden_size": "emb_dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    bidirectional=True,
    causal_if="causal",
)
_GTE = _Encoder(grouped_query_attention(key_value_heads=False), GATED_MLP)

ENCODERS: Mapping[str, Stack] = {
    "albert": replace(
        _ELECTRA, attention=_shared_layers, feed_forward=None, outside=lambda fields: [_embedding_projection(fields)]
    ),
    "bert": _BERT,
    "camembert": _BERT,
    "data2vec-text": _BERT,
    "deberta": _Encoder(disentangled_attention(clipped=True), PLAIN_MLP),
    "deberta-v2": _Encoder(disentangled_attention(clipped=False), PLAIN_MLP, outside=_convolution_if_any),
    "distilbert": _Encoder(
        MHA,
        mlp("hidden_dim", gated=False),
        names={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    ),
    "electra": _ELECTRA,
    "ernie": _BERT,
    "esm": _BERT,
    "eurobert": Stack(GQA, GATED_MLP, bidirectional=True),
    "flaubert": _XLM,
    "gte": _GTE,
    "jina_embeddings_v3": _BERT,
    "megatron-bert": _BERT,
    "modernbert": _Encoder(MHA, GATED_MLP, declared),
    "mpnet": _BERT,
    "nomic_bert": _GTE,
    "rembert": _Encoder(
        MHA,
        PLAIN_MLP,
        outside=lambda fields: [_embedding_projection(fields)],
        head=masked_language_model_head(output_size="output_embedding_size"),
        names={"embedding_size": "input_embedding_size"},
    ),
    "roberta": _BERT,
    "roberta-prelayernorm": _BERT,
    "roformer": _BERT,
    "xlm": _XLM,
    "xlm-roberta": _BERT,
    "xlm-roberta-xl": _BERT,
}
"""Model type → stack."""
