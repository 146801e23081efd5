"""Rows of encoder–decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from areal_callbacks.flops import blocks
from areal_callbacks.flops.attention import MHA
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.encoder_decoder import EncoderDecoder
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.feed_forwards import PLAIN_MLP
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Layer, Reader, Stack

_ENCODER = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
}
_DECODER = {name: own.replace("encoder", "decoder") for name, own in _ENCODER.items()}
_T5 = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "head_dim": "d_kv",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
}
_T5_DECODER = _T5 | {"num_hidden_layers": "num_decoder_layers"}


def t5_mlp(layer: Layer) -> Macs:
    """Gated if ``feed_forward_proj`` starts with "gated" (T5 1.1)."""
    fields = layer.fields
    return blocks.feed_forward(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        gated=str(fields.get("feed_forward_proj", "relu")).startswith("gated"),
    )


def sparse_step(name: str, offset: int) -> Callable[[Layer], bool]:
    """Dense layers: all but those whose index is ``offset`` modulo the step in field ``name``; all, if it is zero."""

    def is_dense(layer: Layer) -> bool:
        step = layer.fields.integer(name)
        return step == 0 or layer.index % step != offset % step

    return is_dense


def always_selected(number: int) -> Reader:
    """Ungated experts of the dense MLP's size, of which every token selects the same number."""

    def feed_forward(layer: Layer) -> Macs:
        return blocks.routed_experts(
            hidden_size=layer.fields.integer("hidden_size"),
            intermediate_size=layer.fields.integer("intermediate_size"),
            num_experts=layer.fields.integer("num_experts"),
            num_experts_per_tok=number,
            gated=False,
        )

    return feed_forward


def spectrogram_convolutions(fields: Fields) -> Iterable[Block]:
    """Whisper's two convolutions over the spectrogram, of kernel 3, the second with stride 2.

    The length is that of the encoder: half the frames, so that the first convolution runs twice for each position.
    """
    hidden, bins = fields.integer("hidden_size"), fields.integer("num_mel_bins")
    return [Block(Macs(2 * 3 * bins * hidden + 3 * hidden * hidden, unused=-3 * bins * hidden), name="convolutions")]


def _sparse(names: Mapping[str, str], step: str, *, selected: int, offset: int, bidirectional: bool) -> Stack:
    return Stack(
        MHA,
        always_selected(selected),
        is_dense=sparse_step(step, offset),
        dense=PLAIN_MLP,
        names=names,
        bidirectional=bidirectional,
    )


_BART = EncoderDecoder(Stack(MHA, PLAIN_MLP, names=_ENCODER, bidirectional=True), Stack(MHA, PLAIN_MLP, names=_DECODER))
_T5_MODEL = EncoderDecoder(Stack(MHA, t5_mlp, names=_T5, bidirectional=True), Stack(MHA, t5_mlp, names=_T5_DECODER))

ENCODER_DECODERS: Mapping[str, EncoderDecoder] = {
    "bart": _BART,
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "fsmt": EncoderDecoder(_BART.encoder, replace(_BART.decoder, names=_DECODER | {"vocab_size": "tgt_vocab_size"})),
    "m2m_100": _BART,
    "marian": _BART,
    "mbart": _BART,
    "mt5": _T5_MODEL,
    "mvp": _BART,
    "nllb-moe": EncoderDecoder(
        _sparse(_ENCODER, "encoder_sparse_step", selected=2, offset=-1, bidirectional=True),
        _sparse(_DECODER, "decoder_sparse_step", selected=2, offset=-1, bidirectional=False),
    ),
    "pegasus": _BART,
    "plbart": _BART,
    "switch_transformers": EncoderDecoder(
        _sparse(_T5, "encoder_sparse_step", selected=1, offset=1, bidirectional=True),
        _sparse(_T5_DECODER, "decoder_sparse_step", selected=1, offset=1, bidirectional=False),
    ),
    "t5": _T5_MODEL,
    "umt5": _T5_MODEL,
    "whisper": EncoderDecoder(
        Stack(MHA, PLAIN_MLP, names=_ENCODER, bidirectional=True, outside=spectrogram_convolutions), _BART.decoder
    ),
}
"""Model type → both stacks."""
