"""How long the sequences are that a model consumes in a call, with what the calls around it were given for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from areal_callbacks.monitors.throughput.lengths import Lengths, lengths_of, sequence_lengths
from areal_callbacks.monitors.throughput.token_batch import TokenBatch, read_batch
from areal_callbacks.monitors.training_forward import ForwardCall

_DECODER = "decoder_"
_ENCODER = "encoder_"


def model_batches(call: ForwardCall) -> list[TokenBatch]:
    """What a model consumes in a call: one batch, or those of an encoder and of a decoder that are one model."""
    inputs, config = call.inputs.named, getattr(call.entry.module, "config", None)
    is_decoder = inputs.get("encoder_hidden_states") is not None
    outer = list(_outer_inputs(call, is_decoder=is_decoder))
    if is_decoder or not _is_pair(call):
        parts = [read_batch(inputs, outer, config)]
    else:
        parts = [read_batch(part, outer, config) for part in (_of_encoder(inputs), _of_decoder(inputs))]
    return [part for part in parts if part is not None]


def model_lengths(call: ForwardCall) -> list[Lengths] | None:
    """The lengths of what a model consumes; None where its arguments hold no tokens."""
    batches = model_batches(call)
    if batches:
        return [lengths_of(batch) for batch in batches]
    hidden = sequence_lengths(call.args, call.kwargs)  # a compiled module is given what the model in it reads
    return None if hidden is None else [hidden]


def _outer_inputs(call: ForwardCall, *, is_decoder: bool) -> Iterator[Mapping[str, Any]]:
    """What the calls around this one were given, the innermost first, by the names of a model of its own.

    In an encoder-decoder the labels are those of the decoder's tokens.
    """
    is_pair, outer = False, call.outer
    while outer is not None:
        is_pair = is_pair or _is_pair(outer)
        inputs = outer.inputs.named
        if is_decoder and is_pair:
            yield _of_decoder(inputs)
        else:
            yield {name: value for name, value in inputs.items() if name != "labels" or not is_pair}
        outer = outer.outer


def _is_pair(call: ForwardCall) -> bool:
    return any(name.startswith(_DECODER) for name in (*call.entry.names, *call.inputs.named))


def _of_encoder(inputs: Mapping[str, Any]) -> dict[str, Any]:
    encoder = {name.removeprefix(_ENCODER): value for name, value in inputs.items() if name.startswith(_ENCODER)}
    return {**encoder, **inputs, "labels": None}


def _of_decoder(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without ids of its own a decoder makes them of the labels."""
    decoder = {name.removeprefix(_DECODER): value for name, value in inputs.items() if name.startswith(_DECODER)}
    labels = inputs.get("labels")
    return {"encoder_hidden_states": (), "labels": labels, "token_ids": labels, **decoder}
