"""How long the sequences of a batch are, from the arguments of a Megatron model's forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_callbacks.monitors.throughput.lengths import Lengths, sequence_lengths
from areal_callbacks.safety.reporting import report_once

_POSITIONAL = ("input_ids", "position_ids", "attention_mask")


class MegatronLengths:
    """A ``token_count_fn`` for models called as ``model(tokens, position_ids, attention_mask, ...)``.

    Packed batches tell their sequences in ``packed_seq_params.cu_seqlens_q``, the boundaries of the whole batch on
    every context-parallel rank. Other batches have one sequence a row, of full width except where ``padding_mask``
    marks padding or ``position_ids`` restart; a context-parallel rank holds an equal part of every row and cannot see
    the padding of the others, so that there the full width counts.

    Args:
        context_parallel_size: number of ranks that share every sequence.
    """

    def __init__(self, context_parallel_size: int = 1) -> None:
        self._shards = context_parallel_size

    def __call__(self, *args: Any, **kwargs: Any) -> Lengths | list[int]:
        """The lengths of whole sequences, without a host sync; empty, with one message, if nothing tells them."""
        inputs = {**dict(zip(_POSITIONAL, args)), **kwargs}
        boundaries = getattr(inputs.get("packed_seq_params"), "cu_seqlens_q", None)
        if self._shards == 1:
            lengths = sequence_lengths((), _translate(inputs, boundaries))
        else:
            lengths = self._read_sharded(inputs.get("input_ids"), boundaries)
        if lengths is None:
            report_once(
                "megatron:inputs", "the first pipeline stage is given no token ids: pass token_count_fn to count tokens"
            )
        return [] if lengths is None else lengths

    def _read_sharded(self, tokens: Any, boundaries: Tensor | None) -> Lengths | None:
        if not isinstance(tokens, Tensor):
            return None
        if boundaries is not None:
            bound = tokens.numel() * self._shards
            return Lengths(boundaries.reshape(-1).diff().clamp(0, bound).long(), bound)
        width = tokens.shape[-1] * self._shards
        rows = tokens.shape[:-1].numel()
        return Lengths(torch.full((rows,), width, dtype=torch.long, device=tokens.device), width)


def _translate(inputs: dict[str, Any], boundaries: Tensor | None) -> dict[str, Any]:
    """The same batch in the words of :func:`sequence_lengths`, where a two-dimensional mask marks what is present."""
    padding = inputs.get("padding_mask")
    present = None if padding is None else ~padding.bool()
    return {
        "input_ids": inputs.get("input_ids"),
        "position_ids": inputs.get("position_ids"),
        "attention_mask": present,
        "cu_seqlens_q": boundaries,
    }
