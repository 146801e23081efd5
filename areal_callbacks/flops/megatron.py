"""From a Megatron ``TransformerConfig`` to the same estimate as from a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.encoder_decoder import EncoderDecoder, EncoderDecoderFlops
from areal_callbacks.flops.estimator import Block, TrainingFlops, training_flops
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.megatron_blocks import GPT, LINEAR_VARIANTS, NAMES, SPARSE, variant_of
from areal_callbacks.flops.megatron_patterns import Pattern, layers_of

_VARIANTS = (SPARSE, *LINEAR_VARIANTS)


def unknown_work(config: Any, *, hybrid_pattern: str | None = None) -> str | None:
    """Why the FLOPs of a configuration are not known, for a message; None if they are."""
    return next(_unknown(_fields(config), hybrid_pattern), None)


def _unknown(fields: Fields, hybrid_pattern: str | None) -> Iterator[str]:
    variant = variant_of(fields)
    if variant not in (None, *_VARIANTS):
        yield f"there is no FLOPs formula for experimental_attention_variant={variant!r}"
    if variant == SPARSE and not fields.get("multi_latent_attention"):
        yield "experimental_attention_variant='dsa' has a FLOPs formula with multi_latent_attention only"
    if fields.get("dsa_indexer_topk_freq", 1) != 1:
        yield f"there is no FLOPs formula for dsa_indexer_topk_freq={fields.get('dsa_indexer_topk_freq')!r}"
    if fields.get("heterogeneous_block_specs"):
        yield "heterogeneous_block_specs: the layers differ in ways that the configuration does not name"
    if hybrid_pattern is None and fields.get("is_hybrid_model"):
        yield "is_hybrid_model: the pattern of the layers is not in the configuration (hybrid_pattern=)"
    if unread := Pattern.parse(hybrid_pattern or "").unknown:
        yield f"there is no FLOPs formula for {', '.join(map(repr, unread))} in the pattern {hybrid_pattern!r}"


def _fields(config: Any) -> Fields:
    return Fields(config, type(config).__name__, NAMES)


def megatron_flops_estimator(
    config: Any,
    *,
    vocab_size: int,
    hybrid_pattern: str | None = None,
    bidirectional: bool = False,
    multi_token_prediction: bool = False,
) -> TrainingFlops | None:
    """Training FLOPs of one sequence of a GPT, hybrid or BERT model.

    Parallelism plays no part: every field that is read describes the whole model.

    Args:
        config: a ``TransformerConfig`` or ``MLATransformerConfig`` of megatron.core.
        vocab_size: rows of the language-model head. Megatron pads them for tensor parallelism; a Hugging Face
            configuration names them without padding.
        hybrid_pattern: ``hybrid_layer_pattern`` (older: ``hybrid_override_pattern``) of a hybrid model, one symbol a
            layer: see :data:`~areal_callbacks.flops.megatron_patterns.SYMBOLS`.
        bidirectional: BERT: every token sees every token, and its head transforms the hidden state first.
        multi_token_prediction: whether to count further tokens (``mtp_num_layers``, or what follows ``/`` in a
            pattern), which the specified estimate leaves out.

    Returns:
        The estimator, or None where :func:`unknown_work` gives a reason.

    Raises:
        ValueError: the configuration lacks a field or has a malformed one.
    """
    if unknown_work(config, hybrid_pattern=hybrid_pattern):
        return None
    fields = _fields(config)
    hidden = fields.integer("hidden_size")
    head = projection(hidden, vocab_size)
    pattern = Pattern.parse(hybrid_pattern) if hybrid_pattern else None
    layers = pattern.blocks(fields) if pattern else replace(GPT, bidirectional=bidirectional).blocks(fields)
    if multi_token_prediction:
        layers += _further_tokens(fields, pattern, head)
    return training_flops(layers, head + projection(hidden, hidden) if bidirectional else head)


def megatron_t5_flops_estimator(encoder: Any, decoder: Any, *, vocab_size: int) -> EncoderDecoderFlops | None:
    """Training FLOPs of a T5 model of megatron.core, from the configurations of its two sides; None as above."""
    if unknown_work(encoder) or unknown_work(decoder):
        return None
    model = EncoderDecoder(
        replace(GPT, bidirectional=True),
        replace(GPT, head=lambda fields: projection(fields.integer("hidden_size"), vocab_size)),
    )
    return model.compile_sides(encoder, decoder, type(decoder).__name__)


def _further_tokens(fields: Fields, pattern: Pattern | None, head: Macs) -> list[Block]:
    """For each: a projection of two hidden states to one, layers, and the head."""
    hidden = fields.integer("hidden_size")
    extra = Block(projection(2 * hidden, hidden) + head, name="multi-token prediction")
    if pattern is not None:
        return [block for part in pattern.further for block in (*layers_of(part, fields), extra)]
    number, last = fields.integer("mtp_num_layers", default=0), fields.integer("num_hidden_layers", minimum=1) - 1
    return number * [*GPT.layer_blocks(fields, last), extra]
