"""How long the sequences of a batch are, from the arguments of a Megatron model's forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from areal_callbacks.monitors.consumers import find_entries
from areal_callbacks.monitors.throughput.lengths import Lengths, lengths_of
from areal_callbacks.monitors.throughput.padding import run_at_end
from areal_callbacks.monitors.throughput.token_batch import read_batch
from areal_callbacks.safety.reporting import report_once

GPT = ("input_ids", "position_ids", "attention_mask")
BERT = ("input_ids", "attention_mask", "tokentype_ids")
T5 = ("encoder_input_ids", "decoder_input_ids", "encoder_attn_mask", "decoder_attn_mask")


def forward_names(chunk: nn.Module) -> tuple[str, ...] | None:
    """The positional parameters of the model in a chunk, inside Megatron's wrappers; None if it takes no token ids."""
    return next((entry.names for entry in find_entries(chunk) if "text" in entry.consumes), None)


class MegatronLengths:
    """A ``token_count_fn`` for Megatron's models, whose scripts give them their arguments by position.

    Packed batches tell their sequences in ``packed_seq_params.cu_seqlens_q``, the boundaries of the whole batch on
    every context-parallel rank; with ``local_cp_size``, on each of that many ranks, of which the first counts. Other
    batches have one sequence a row, of full width except where ``padding_mask``, BERT's ``attention_mask`` or a token
    that may not attend to itself marks padding, or ``position_ids`` restart; a context-parallel rank holds an equal
    part of every row and cannot see the padding of the others, so that there the full width counts. An
    encoder-decoder has the sequences of both.

    Args:
        context_parallel_size: number of ranks that share every sequence.
        names: of the forward's positional parameters; by default those that fit the arguments.
    """

    def __init__(self, context_parallel_size: int = 1, names: Sequence[str] | None = None) -> None:
        self._shards = context_parallel_size
        self._names = names

    def __call__(self, *args: Any, **kwargs: Any) -> Lengths | list[int]:
        """The lengths of whole sequences, without a host sync; empty, with one message, if nothing tells them."""
        inputs = {**dict(zip(self._names or _guess_names(args, kwargs), args)), **kwargs}
        packed = inputs.get("packed_seq_params")
        group = getattr(packed, "cp_group", None) if getattr(packed, "local_cp_size", None) else None
        if group is not None and group.rank() != 0:
            return []
        shards = getattr(packed, "local_cp_size", None) or self._shards
        found = [lengths for part in _parts(inputs) if (lengths := _read(part, packed, shards)) is not None]
        if not found:
            report_once(
                "megatron:inputs", "the first pipeline stage is given no token ids: pass token_count_fn to count tokens"
            )
            return []
        return found[-1] if len(found) == 1 else found[1].join(found[0])


def _guess_names(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[str]:
    if "tokentype_ids" in kwargs:
        return BERT
    is_pair = len(args) > 1 and all(isinstance(value, Tensor) for value in args[:2])
    return T5 if is_pair and args[0].shape[-1] != args[1].shape[-1] else GPT


def _parts(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One batch, or those of encoder and decoder, whose masks mark what is hidden, like all of Megatron's squares."""
    if "encoder_input_ids" in inputs:
        return [
            {"input_ids": inputs.get(f"{part}_input_ids"), "attention_mask": _present(inputs.get(f"{part}_attn_mask"))}
            for part in ("encoder", "decoder")
        ]
    mask, padding = inputs.get("attention_mask"), inputs.get("padding_mask")
    present = ~padding.bool() if isinstance(padding, Tensor) else _visible(mask)
    return [{**inputs, "attention_mask": mask if present is None and _is_flat(mask) else present}]


def _visible(hidden: Any) -> Tensor | None:
    return ~hidden if isinstance(hidden, Tensor) and hidden.dtype == torch.bool and hidden.dim() == 4 else None


def _present(hidden: Any) -> Tensor | None:
    """By rows, so that a target and its source stay together."""
    visible = _visible(hidden)
    return None if visible is None else visible[:, 0].diagonal(0, 1, 2)


def _is_flat(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.dim() == 2


def _read(inputs: Mapping[str, Any], packed: Any, shards: int) -> Lengths | None:
    tokens, boundaries = inputs.get("input_ids"), getattr(packed, "cu_seqlens_q", None)
    if not isinstance(tokens, Tensor):
        return None
    if shards > 1 and boundaries is not None:
        bound = tokens.numel() * shards
        return Lengths(boundaries.reshape(-1).diff().clamp(0, bound).long(), bound)
    if shards > 1:
        width, rows = tokens.shape[-1] * shards, tokens.shape[:-1].numel()
        return Lengths(torch.full((rows,), width, dtype=torch.long, device=tokens.device), width)
    told = {name: inputs.get(name) for name in ("input_ids", "attention_mask", "position_ids")}
    if boundaries is not None:
        told |= {"cu_seqlens": boundaries, "attention_mask": _mask_filler(tokens, inputs.get("loss_mask"))}
    batch = read_batch(told)
    return None if batch is None else lengths_of(batch)


def _mask_filler(tokens: Tensor, loss_mask: Any) -> Tensor | None:
    """The last conversation of a pack may reach to its end: what repeats the last token without a loss fills it up."""
    if not isinstance(loss_mask, Tensor) or loss_mask.shape != tokens.shape:
        return None
    filler = run_at_end((tokens == tokens[..., -1:]) & (loss_mask == 0))
    return ~(filler & (filler.sum(-1, keepdim=True) > 1))
