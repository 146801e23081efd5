"""Where one sequence of a batch ends and the next begins."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.monitors.throughput.token_batch import TokenBatch


def find_starts(batch: TokenBatch) -> Tensor | None:
    """Bool ``[rows, width]``, True where a sequence begins; None where each row is one sequence.

    Told by boundaries, or else by positions that restart and by tokens that may not attend to the one before.
    """
    if batch.boundaries is not None:
        return _at_boundaries(batch.boundaries, batch)
    found = [] if batch.positions is None else [_restarts(batch.positions)]
    found += [] if batch.square is None else [_blind(batch.square)]
    if found and batch.mask is not None and batch.has_numbers:
        found.append(_new_numbers(batch.mask))
    if not found:
        return None
    starts = torch.stack(found).any(0)
    starts[:, :1] = True
    return starts


def segment_ids(starts: Tensor) -> Tensor:
    """``[rows * width]``: the number of each token's sequence in the batch."""
    return starts.reshape(-1).cumsum(0) - 1


def _at_boundaries(boundaries: Tensor, batch: TokenBatch) -> Tensor:
    tokens = batch.rows * batch.width
    starts = torch.zeros(tokens + 1, dtype=torch.bool, device=batch.device)
    starts[boundaries.reshape(-1).long().clamp(0, tokens)] = True
    starts[0] = True
    return starts[:-1].view(batch.rows, batch.width)


def _restarts(positions: Tensor) -> Tensor:
    """Text does not go on; the first patch of an image goes on in time, and a sequence begins where all axes do."""
    first = positions[..., 0]
    starts = torch.zeros(first.shape, dtype=torch.bool, device=first.device)
    before, here = first[:, :-1], first[:, 1:]
    starts[:, 1:] = here <= before if positions.shape[-1] == 1 else (here < before) | (positions[:, 1:] == 0).all(-1)
    return starts


def _new_numbers(mask: Tensor) -> Tensor:
    highest = mask.cummax(-1).values
    starts = torch.zeros(mask.shape, dtype=torch.bool, device=mask.device)
    starts[:, 1:] = (highest[:, 1:] != highest[:, :-1]) & (highest[:, :-1] > 0)
    return starts


def _blind(square: Tensor) -> Tensor:
    starts = torch.zeros(square.shape[:2], dtype=torch.bool, device=square.device)
    starts[:, 1:] = ~square.diagonal(-1, 1, 2)
    return starts
