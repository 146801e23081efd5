"""From a Megatron ``TransformerConfig`` to the same estimate as from a Hugging Face configuration.

The readers of fields are those of the table of architectures; only the names of the fields differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from areal_callbacks.flops import blocks
from areal_callbacks.flops.attention import (
    GQA,
    grouped_query_attention,
    multi_head_latent_attention,
    sparse_latent_attention,
)
from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.encoder_decoder import EncoderDecoder, EncoderDecoderFlops
from areal_callbacks.flops.estimator import Block, TrainingFlops, training_flops
from areal_callbacks.flops.feed_forwards import mlp
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layer_types import FULL, LINEAR, SLIDING
from areal_callbacks.flops.layers import Layer, Stack
from areal_callbacks.flops.mixers import gated_delta_net

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

_GATED_DELTA_NET, _SPARSE = "gated_delta_net", "dsa"
_SYMBOLS = {"M": "mamba", "*": FULL, "-": "mlp", "E": "moe"}
_GATED_GQA = grouped_query_attention(gated=True)


def unknown_work(config: Any, *, hybrid_pattern: str | None = None) -> str | None:
    """Why the FLOPs of a configuration are not known, for a message; None if they are."""
    fields = Fields(config, type(config).__name__, NAMES)
    variant = fields.get("experimental_attention_variant")
    if variant not in (None, _GATED_DELTA_NET, _SPARSE):
        return f"no formula for experimental_attention_variant={variant!r}"
    if variant == _SPARSE and not fields.get("multi_latent_attention"):
        return "sparse attention is counted with multi_latent_attention only"
    if fields.get("heterogeneous_block_specs"):
        return "heterogeneous_block_specs: the layers differ in ways that the configuration does not name"
    if fields.get("is_hybrid_model") and hybrid_pattern is None:
        return "is_hybrid_model: the pattern of the layers is not in the configuration (hybrid_pattern=)"
    if unread := sorted(set(hybrid_pattern or "") - _SYMBOLS.keys()):
        return f"no formula for {', '.join(map(repr, unread))} in the pattern of the hybrid layers"
    return None


def megatron_flops_estimator(
    config: Any,
    *,
    vocab_size: int,
    hybrid_pattern: str | None = None,
    bidirectional: bool = False,
    multi_token_prediction: bool = False,
) -> TrainingFlops | None:
    """Training FLOPs of one sequence of a GPT, Mamba-hybrid or BERT model.

    Parallelism plays no part: every field that is read describes the whole model.

    Args:
        config: a ``TransformerConfig`` or ``MLATransformerConfig`` of megatron.core.
        vocab_size: rows of the language-model head. Megatron pads them for tensor parallelism; a Hugging Face
            configuration names them without padding.
        hybrid_pattern: ``hybrid_override_pattern`` of a hybrid model, one symbol a layer: M, ``*``, -, E.
        bidirectional: BERT: every token sees every token, and its head transforms the hidden state first.
        multi_token_prediction: whether to count ``mtp_num_layers``, which the specified estimate leaves out.

    Returns:
        The estimator, or None where :func:`unknown_work` gives a reason.

    Raises:
        ValueError: the configuration lacks a field or has a malformed one.
    """
    if unknown_work(config, hybrid_pattern=hybrid_pattern):
        return None
    fields = Fields(config, type(config).__name__, NAMES)
    stack = _hybrid(hybrid_pattern) if hybrid_pattern else replace(_GPT, bidirectional=bidirectional)
    hidden = fields.integer("hidden_size")
    head = projection(hidden, vocab_size)
    layers = stack.blocks(fields)
    if multi_token_prediction:
        layers += _predicted_tokens(fields, stack, head)
    return training_flops(layers, head + projection(hidden, hidden) if bidirectional else head)


def megatron_t5_flops_estimator(encoder: Any, decoder: Any, *, vocab_size: int) -> EncoderDecoderFlops | None:
    """Training FLOPs of a T5 model of megatron.core, from the configurations of its two sides; None as above."""
    if unknown_work(encoder) or unknown_work(decoder):
        return None
    model = EncoderDecoder(
        replace(_GPT, bidirectional=True),
        replace(_GPT, head=lambda fields: projection(fields.integer("hidden_size"), vocab_size)),
    )
    return model.compile_sides(encoder, decoder, type(decoder).__name__)


def _attention(layer: Layer) -> Macs | Any:
    fields = layer.fields
    if fields.get("experimental_attention_variant") == _SPARSE:
        return sparse_latent_attention(layer)
    if fields.get("multi_latent_attention"):
        return multi_head_latent_attention(layer)
    return (_GATED_GQA if fields.get("attention_output_gate") else GQA)(layer)


def _dense(layer: Layer) -> Macs | Any:
    return mlp(gated=bool(layer.fields.get("gated_linear_unit")), times_hidden=4)(layer)


def _experts(layer: Layer) -> Macs:
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


def _mamba(layer: Layer) -> Macs:
    fields, hidden = layer.fields, layer.fields.integer("hidden_size")
    head_dim = fields.integer("mamba_head_dim", minimum=1)
    return blocks.mamba2(
        hidden_size=hidden,
        num_heads=fields.integer("mamba_num_heads", default=2 * hidden // head_dim),
        head_dim=head_dim,
        n_groups=fields.integer("mamba_num_groups"),
        state_size=fields.integer("mamba_state_dim"),
        conv_kernel_size=4,  # of the mixer itself; no field
    )


def _kinds(fields: Fields, layers: int) -> list[str]:
    linear = _pattern(fields, "linear_attention_freq", layers, lambda layer, step: (layer + 1) % step != 0)
    windowed = _pattern(fields, "window_attn_skip_freq", layers, lambda layer, step: (layer + 1) % step != 0)
    has_linear = fields.get("experimental_attention_variant") == _GATED_DELTA_NET
    window = fields.sequence("window_size")
    has_window = bool(window) and window is not None and window[0] >= 0
    return [
        LINEAR if has_linear and linear[i] else SLIDING if has_window and windowed[i] else FULL for i in range(layers)
    ]


def _windowed(layer: Layer) -> Macs | Any:
    found = _attention(layer)
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


def _hybrid(pattern: str) -> Stack:
    def kinds(fields: Fields, layers: int) -> list[str]:
        if len(pattern) != layers:
            raise fields.error(f"the pattern of the hybrid layers has {len(pattern)} symbols for {layers} layers")
        return [_SYMBOLS[symbol] for symbol in pattern]

    return Stack(_attention, None, kinds, mixers={"mamba": _mamba, "mlp": _dense, "moe": _experts}, names=NAMES)


def _predicted_tokens(fields: Fields, stack: Stack, head: Macs) -> list[Block]:
    """Each further token: a projection of two hidden states to one, the model's last layer again, and the head."""
    hidden, last = fields.integer("hidden_size"), fields.integer("num_hidden_layers", minimum=1) - 1
    layer = stack.layer_blocks(fields, last)
    extra = [*layer, Block(projection(2 * hidden, hidden) + head, name="multi-token prediction")]
    return fields.integer("mtp_num_layers", default=0) * extra


_GPT = Stack(
    _windowed, _experts, _kinds, is_dense=_is_dense, dense=_dense, mixers={LINEAR: gated_delta_net}, names=NAMES
)
