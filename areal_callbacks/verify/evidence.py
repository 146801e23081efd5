"""What the arguments of the running calls say about the rows of ids that are embedded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.verify.calls import ModuleCall

MASKS = ("attention_mask", "mask", "input_mask", "padding_mask")
POSITIONS = ("position_ids", "positions", "cache_position", "input_pos")
LABELS = ("labels", "label_ids", "targets", "target_ids")
BORDERS = ("cu_seq_lens_q", "cu_seq_lens", "cu_seqlens", "cu_seqlens_q", "cu_seq_lens_k")


@dataclass
class Evidence:
    """What is known about rows ``[B, T]`` that a table embedded.

    Attributes:
        shape: (B, T).
        ids: ``[B, T]``, None where embeddings were given instead.
        mask: ``[B, T]`` (0 is padding; larger numbers may name sequences).
        pairs: bool ``[B, T, T]``: which query may see which key.
        positions: ``[axes, B, T]``.
        labels: ``[B, T]``, −100 where nothing is predicted.
        borders: cumulative lengths over the flattened rows.
        decodes: the rows are a decoder's inputs, whose padding only labels may tell.
        pad: the padding id.
    """

    shape: tuple[int, int]
    ids: Tensor | None = None
    mask: Tensor | None = None
    pairs: Tensor | None = None
    positions: Tensor | None = None
    labels: Tensor | None = None
    borders: Tensor | None = None
    decodes: bool = False
    pad: int | None = None
    notes: list[str] = field(default_factory=list)


def gather(embedded: Tensor, calls: Iterable[ModuleCall], batch: Any, pad: int | None) -> Evidence:
    """Collect evidence about embedded ids (integers of any rank) or given embeddings (``[…, T, H]``).

    The innermost call that knows a thing decides it. A call that does not hold these very ids knows nothing of them,
    except for an encoder–decoder model that makes its decoder's inputs out of labels.

    Args:
        embedded: what was embedded, or the embeddings.
        calls: the running calls, the innermost first.
        batch: named values of the batch, asked last.
        pad: the padding id, if one is named.
    """
    is_ids = not embedded.is_floating_point()
    shape = tuple(embedded.shape if is_ids else embedded.shape[:-1])
    width = shape[-1] if shape else 1
    rows = embedded.reshape(-1, width) if is_ids else None
    evidence = Evidence((embedded.numel() // width // (1 if is_ids else embedded.shape[-1]), width), pad=pad)
    evidence.ids = None if rows is None else rows.detach().cpu()
    for call in [*calls, ModuleCall(None, dict(batch), frozenset())]:
        names = _names_for(embedded, call)
        if names is not None:
            _take(evidence, call.arguments, names)
            evidence.decodes |= names["decodes"]
    return evidence


def _names_for(embedded: Tensor, call: ModuleCall) -> dict[str, Any] | None:
    """Under which names this call speaks of what was embedded; None if it does not."""
    own = {"masks": MASKS, "positions": POSITIONS, "labels": LABELS, "borders": BORDERS, "decodes": False}
    holds = [name for name, value in call.arguments.items() if _is_same(value, embedded)]
    if not ({"decoder_input_ids", "decoder_attention_mask"} & (call.parameters | call.arguments.keys())):
        return own if holds else None
    if holds and not any(name.startswith(("decoder_", *LABELS)) for name in holds):
        return {**own, "positions": (), "labels": ()}
    return {
        **own,
        "masks": ("decoder_attention_mask",),
        "positions": ("decoder_position_ids",),
        "decodes": True,
    }


def _is_same(value: Any, embedded: Tensor) -> bool:
    """The same tensor, a view of it or of the same memory, or an equal copy."""
    if not isinstance(value, Tensor) or value.dtype != embedded.dtype:
        return False
    if value is embedded:
        return True
    if value.numel() != embedded.numel():
        return False
    if value.device == embedded.device and value.untyped_storage().data_ptr() == embedded.untyped_storage().data_ptr():
        return True
    return torch.equal(value.reshape(-1).cpu(), embedded.reshape(-1).cpu())


def _take(evidence: Evidence, arguments: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    if evidence.mask is None and evidence.pairs is None:
        for value in _tensors(arguments, names["masks"]):
            evidence.mask = _fit_rows(value, evidence.shape)
            evidence.pairs = None if evidence.mask is not None else _fit_pairs(value, evidence.shape)
    if evidence.positions is None:
        for value in _tensors(arguments, names["positions"]):
            evidence.positions = _fit_positions(value, evidence.shape)
    if evidence.labels is None:
        for value in _tensors(arguments, names["labels"]):
            evidence.labels = _fit_rows(value, evidence.shape)
    if evidence.borders is None:
        for value in _tensors(arguments, names["borders"]):
            evidence.borders = value.reshape(-1) if not value.is_floating_point() else None


def _tensors(arguments: Mapping[str, Any], names: Sequence[str]) -> Iterable[Tensor]:
    """The first of these names that holds a tensor."""
    found = [value.detach().cpu() for name in names if isinstance(value := arguments.get(name), Tensor)]
    return found[:1]


def _fit_rows(value: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """A value with one number for each id, as ``[B, T]``."""
    fits = value.dim() and value.numel() == shape[0] * shape[1] and value.shape[-1] == shape[1]
    return value.reshape(shape) if fits and not value.is_floating_point() else None


def _fit_pairs(value: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """A mask of queries and keys as bool ``[B, T, T]``: True or 0.0 in additive masks is seen."""
    batch, width = shape
    if value.dim() < 3 or tuple(value.shape[-2:]) != (width, width):
        return None
    first_head = value[:, 0] if value.dim() == 4 else value
    seen = first_head > -1 if value.is_floating_point() else first_head.bool()
    return seen.expand(batch, width, width) if len(seen) in (1, batch) else None


def _fit_positions(value: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Positions ``[T]``, ``[B, T]`` or ``[axes, B, T]`` as ``[axes, B, T]``."""
    if value.is_floating_point() or not value.dim() or value.shape[-1] != shape[1]:
        return None
    axes = value.reshape(-1, *value.shape[-2:]) if value.dim() > 1 else value.reshape(1, 1, -1)
    return axes.expand(-1, *shape) if axes.shape[1] in (1, shape[0]) else None
