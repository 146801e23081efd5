"""How long the sequences are that a model consumes in a call, with what the calls around it were given for them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.monitors.compilation import uncompiled
from areal_callbacks.monitors.consumers import NAMES, hides_calls, is_transformers_model
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.lookups import find_embedded
from areal_callbacks.monitors.throughput.lengths import Lengths, lengths_of, read_texts, sequence_lengths
from areal_callbacks.monitors.throughput.texts import find_named_texts, find_texts, name_mask
from areal_callbacks.monitors.throughput.token_batch import read_batch, read_tokens

_MODALITIES = NAMES["audio"] | NAMES["images"]
_DECODER = "decoder_"
_ENCODER = "encoder_"


def model_lengths(call: ForwardCall) -> Lengths | None:
    """The lengths of what a model consumes: of one batch, or of those of an encoder and a decoder in one model.

    Returns:
        None where its arguments hold no tokens.
    """
    inputs = call.inputs.named
    if inputs.get("encoder_hidden_states") is not None:
        lengths = _read(call, inputs, is_decoder=True)
        return None if lengths is None else lengths.attend_to(_source_lengths(call, inputs))
    if _is_pair(call):
        source, target = _read(call, _of_encoder(inputs)), _read(call, _of_decoder(inputs), is_decoder=True)
        return None if source is None or target is None else target.join(source)
    lengths = _read(call, inputs)
    if lengths is None:  # a compiled module hides the model in it
        lengths = sequence_lengths(call.args, call.kwargs, config=call.entry.config)
    else:
        lengths = functools.reduce(Lengths.add, _read_further(call), lengths)
    pair = next(filter(_is_pair, call.around()), None)
    if lengths is None or pair is None:
        return lengths
    pair.sources = lengths.values
    return lengths._replace(is_paired=True)


def outermost_lengths(call: ForwardCall) -> Lengths | None:
    """The lengths in the arguments of a call in which no model consumes text."""
    return sequence_lengths(call.args, call.kwargs, call.looked_up, call.entry.config, call.entry.names)


def batch_lengths(inputs: Mapping[str, Any]) -> Lengths | None:
    """The lengths in the keyword arguments of a model."""
    return sequence_lengths((), inputs)


def _read(call: ForwardCall, inputs: Mapping[str, Any], *, is_decoder: bool = False) -> Lengths | None:
    given = {**name_mask(inputs, call.entry.names), **_read_lookups(call, inputs)}
    batch = read_batch(given, list(_outer_inputs(call, is_decoder=is_decoder)), call.entry.config)
    return None if batch is None else lengths_of(batch)


def _read_further(call: ForwardCall) -> list[Lengths]:
    """The other texts of a module of nobody's library."""
    is_hidden = hides_calls(call.module) and not is_transformers_model(uncompiled(call.module))
    if not call.looked_up and not is_hidden:
        return []
    texts = find_named_texts(call.inputs) if is_hidden else find_texts(call.inputs, call.looked_up)
    return read_texts(call.inputs, texts, call.entry.config)[1:]


def _read_lookups(call: ForwardCall, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The ids that given embeddings were made of. What stands before them, a prompt of trained vectors, is no text.

    Where images or sound are given, too, their places in the text are positions like the others.
    """
    embeddings = read_tokens(inputs)
    if embeddings is None or not embeddings.is_floating_point() or embeddings.dim() != 3:
        return {}
    ids = find_embedded(call.lookups(), call.module, *embeddings.shape[:2])
    width = sum(each.shape[1] for each in ids)
    if not ids or (width < embeddings.shape[1] and not _MODALITIES.isdisjoint(call.with_outer())):
        return {}
    return {"input_ids": ids[0] if len(ids) == 1 else torch.cat(ids, 1)}


def _source_lengths(call: ForwardCall, inputs: Mapping[str, Any]) -> Tensor | None:
    hidden, mask = inputs["encoder_hidden_states"], inputs.get("encoder_attention_mask")
    read = next((outer.sources for outer in call.around() if outer.sources is not None), None)
    if read is not None and isinstance(hidden, Tensor) and len(read) == len(hidden):
        return read
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask.count_nonzero(-1)
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        return None
    return torch.full((len(hidden),), hidden.shape[1], dtype=torch.long, device=hidden.device)


def _outer_inputs(call: ForwardCall, *, is_decoder: bool) -> Iterator[Mapping[str, Any]]:
    """What the calls around this one were given, the innermost first, by the names of a model of its own.

    In an encoder-decoder the labels are those of the decoder's tokens.
    """
    is_pair = False
    for outer in call.around():
        is_pair = is_pair or _is_pair(outer)
        inputs = name_mask(outer.inputs.named, outer.entry.names)
        if is_decoder and is_pair:
            yield _of_decoder(inputs)
        else:
            yield {name: value for name, value in inputs.items() if name != "labels" or not is_pair}


def _is_pair(call: ForwardCall) -> bool:
    return f"{_DECODER}input_ids" in {*call.entry.names, *call.inputs.named}


def _of_encoder(inputs: Mapping[str, Any]) -> dict[str, Any]:
    encoder = {name.removeprefix(_ENCODER): value for name, value in inputs.items() if name.startswith(_ENCODER)}
    return {**encoder, **inputs, "labels": None}


def _of_decoder(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without ids of its own a decoder makes them of the labels."""
    decoder = {name.removeprefix(_DECODER): value for name, value in inputs.items() if name.startswith(_DECODER)}
    labels = inputs.get("labels")
    return {"encoder_hidden_states": (), "labels": labels, "token_ids": labels, **decoder}
