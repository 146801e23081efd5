"""Which tokens of a batch are padding: what the batch tells decides, not a guess."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.monitors.throughput.segments import segment_ids
from areal_callbacks.monitors.throughput.token_batch import TokenBatch

_NO_LOSS = -100


def find_padding(batch: TokenBatch, starts: Tensor | None) -> Tensor | None:
    """Bool ``[rows, width]``, True for padding; None where no token is.

    A mask tells it: a token is marked, may not attend to itself, or lies behind the last boundary. In the decoder of an
    encoder-decoder, whose labels are its own tokens, what ends a sequence without a loss is padding, too: the model
    masks only what has the number of padding. Without a flat mask, padding is what ends a sequence or begins a row with
    the number of padding in the configuration, where there is no loss (if nothing tells where a loss is: unless that
    number also ends sequences).

    Behind a packing it is what has positions 0, 0, 0 and no loss, also where a mask does not tell it; and sequences of
    nothing but the number of padding, at either end of a row that has others.
    """
    rules = (_from_ends, _from_restarts, _from_segments)
    told = [_from_masks(batch), *(rule(batch, starts) for rule in rules), _from_boundaries(batch)]
    found = [padding for padding in told if padding is not None]
    return torch.stack(found).any(0) if found else None


def _from_masks(batch: TokenBatch) -> Tensor | None:
    if batch.mask is not None:
        return batch.mask == 0
    return None if batch.square is None else ~batch.square.diagonal(0, 1, 2)


def _from_boundaries(batch: TokenBatch) -> Tensor | None:
    if batch.boundaries is None:
        return None
    places = torch.arange(batch.rows * batch.width, device=batch.device)
    return (places >= batch.boundaries.reshape(-1)[-1]).view(batch.rows, batch.width)


def _from_ends(batch: TokenBatch, starts: Tensor | None) -> Tensor | None:
    without_loss = None if batch.labels is None else batch.labels == _NO_LOSS
    if batch.ends_with_labels and without_loss is not None:
        return _ends(without_loss, starts)
    if batch.mask is not None:
        return None
    if batch.ids is None or batch.pad_id is None or (without_loss is None and batch.is_pad_shared):
        return None
    padding = batch.ids == batch.pad_id
    padding = padding if without_loss is None else padding & without_loss
    ends = _ends(padding, starts)
    if batch.is_decoder:  # which may begin with the number of padding
        return ends
    return ends | run_at_end(padding.flip(-1)).flip(-1)


def _from_restarts(batch: TokenBatch, starts: Tensor | None) -> Tensor | None:
    if batch.positions is None or starts is None or (batch.mask is not None and batch.labels is None):
        return None
    single = starts & (batch.positions == 0).all(-1)
    single[:, :-1] &= starts[:, 1:]
    if batch.ids is not None and batch.pad_id is not None:
        single &= batch.ids == batch.pad_id
    if batch.labels is not None:
        return _ends(single & (batch.labels == _NO_LOSS), None)
    run = _ends(single, None)
    return run & (run.sum(-1, keepdim=True) > 1)  # one alone may be a sequence


def _from_segments(batch: TokenBatch, starts: Tensor | None) -> Tensor | None:
    if starts is None or batch.ids is None or batch.pad_id is None:
        return None
    segments, pads = segment_ids(starts), (batch.ids == batch.pad_id).reshape(-1).long()
    fewest = torch.ones_like(pads).scatter_reduce_(0, segments, pads, "amin")
    whole = fewest[segments].view_as(starts).bool()
    return _ends_of_rows(whole) & ~whole.all(-1, keepdim=True)


def _ends_of_rows(found: Tensor) -> Tensor:
    return run_at_end(found) | run_at_end(found.flip(-1)).flip(-1)


def _ends(found: Tensor, starts: Tensor | None) -> Tensor:
    """Where it holds from there to the end of the sequence; of the row, without starts."""
    if starts is None:
        return run_at_end(found)
    segments, others = segment_ids(starts), (~found).reshape(-1).cumsum(0)
    last = torch.zeros_like(others).scatter_reduce_(0, segments, others, "amax")
    return found & (last[segments] == others).view_as(found)


def run_at_end(found: Tensor) -> Tensor:
    """Where it holds from there to the end of the row."""
    return found.flip(-1).to(torch.uint8).cumprod(-1).flip(-1).bool()
