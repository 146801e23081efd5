"""What the arguments of the running calls say about the rows of ids that are embedded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.verify.calls import ModuleCall
from areal_callbacks.verify.fitting import fit_lengths, fit_pairs, fit_positions, fit_rows
from areal_callbacks.verify.row_lengths import name_lengths, tells_rows

MASKS = ("attention_mask", "mask")
POSITIONS = ("position_ids", "positions", "cache_position", "input_pos")
LABELS = ("labels", "label_ids", "targets", "target_ids")
BORDERS = ("cu_seq_lens_q", "cu_seq_lens", "cu_seqlens", "cu_seqlens_q", "cu_seq_lens_k")


_OTHERS = re.compile("mask|label|(^|_)(pos|position|positions|seg|segment|segments|type|types)(_|$)")
"""In the names of matrices that are embedded and no text."""


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
        ends: the padding id also ends or begins texts.
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
    ends: bool = False

    def fill(self, whole: Evidence) -> Evidence:
        """With what is known of rows at whose end these stand, where nothing is known of these."""
        mask = None if whole.mask is None else whole.mask[:, -self.shape[1] :]
        same = whole if whole.shape == self.shape else Evidence(self.shape)
        filled = {
            name: getattr(same, name) if getattr(self, name) is None else getattr(self, name)
            for name in ("pairs", "positions", "labels", "borders", "pad")
        }
        return replace(self, mask=mask if self.mask is None else self.mask, decodes=whole.decodes, **filled)


def holds_text(ids: Tensor, calls: Iterable[ModuleCall]) -> bool:
    """Whether one of these calls was given the ids as a matrix that its name does not call something else."""
    if ids.dim() < 2 or ids.dtype in (torch.bool, torch.uint8, torch.int8):
        return False
    return any(not _OTHERS.search(name) for name in _names_of(ids, calls))


def holds_other(ids: Tensor, calls: Iterable[ModuleCall]) -> bool:
    """Whether the names that these calls have for the ids all say that they are something else."""
    names = _names_of(ids, calls)
    return bool(names) and all(map(_OTHERS.search, names))


def _names_of(ids: Tensor, calls: Iterable[ModuleCall]) -> list[str]:
    named = (item for call in calls for item in call.arguments.items())
    return [name for name, value in named if _is_same(value, ids) or _find_columns(value, ids) is not None]


def _find_columns(value: Any, ids: Tensor) -> int | None:
    """The first of the columns of a wider matrix that the ids are."""
    if not isinstance(value, Tensor) or value.dtype != ids.dtype or value.dim() != 2 or ids.dim() != 2:
        return None
    rows, width = ids.shape
    if len(value) != rows or value.shape[1] <= width:
        return None
    parts = range(value.shape[1] - width + 1)
    return next((first for first in parts if torch.equal(value[:, first : first + width], ids)), None)


def _cut(call: ModuleCall, embedded: Tensor) -> ModuleCall:
    """The call as if it had been given the columns of its matrices that were embedded."""
    firsts = [_find_columns(value, embedded) for value in call.arguments.values()]
    first = next((first for first in firsts if first is not None), None)
    if first is None or embedded.is_floating_point():
        return call
    width = next(value.shape[1] for value in call.arguments.values() if _find_columns(value, embedded) is not None)
    cut = {
        name: value[..., first : first + embedded.shape[1]]
        for name, value in call.arguments.items()
        if isinstance(value, Tensor) and value.dim() > 1 and value.shape[-1] == width
    }
    return call._replace(arguments={**call.arguments, **cut})


def gather(embedded: Tensor, calls: Sequence[ModuleCall], batch: Any, pad: int | None) -> Evidence:
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
    embedded = _turn(embedded, calls) if is_ids else embedded
    shape = tuple(embedded.shape if is_ids else embedded.shape[:-1])
    width = shape[-1] if shape else 1
    rows = embedded.reshape(-1, width) if is_ids else None
    evidence = Evidence((embedded.numel() // width // (1 if is_ids else embedded.shape[-1]), width), pad=pad)
    evidence.ids = None if rows is None else rows.detach().cpu()
    is_source = False
    for uncut in [*calls, ModuleCall(None, dict(batch), frozenset())]:
        call = _cut(uncut, embedded)
        names = _names_for(embedded, call)
        if names is not None and not (is_source and names["decodes"]):
            _take(evidence, call, names)
            evidence.decodes |= names["decodes"]
            is_source |= names["is_source"]
    return evidence


def _names_for(embedded: Tensor, call: ModuleCall) -> dict[str, Any] | None:
    """Under which names this call speaks of what was embedded; None if it does not."""
    holds = [name for name, value in call.arguments.items() if _is_same(value, embedded)]
    masks = _name_masks(holds, call.arguments)
    own = {
        "masks": masks,
        "lengths": name_lengths(holds, call.arguments),
        "positions": POSITIONS,
        "labels": LABELS,
        "borders": BORDERS,
        "decodes": False,
        "is_source": False,
    }
    if not ({"decoder_input_ids", "decoder_attention_mask"} & (call.parameters | call.arguments.keys())):
        return own if holds else None
    if holds and not any(name.startswith(("decoder_", *LABELS)) for name in holds):
        return {**own, "positions": (), "labels": (), "is_source": True}
    return {
        **own,
        "masks": ("decoder_attention_mask",),
        "lengths": (),
        "positions": ("decoder_position_ids",),
        "decodes": True,
    }


def _turn(ids: Tensor, calls: Iterable[ModuleCall]) -> Tensor:
    """Ids ``[T, B]`` as the innermost call has them that was given ``[B, T]``, or a mask or lengths of B rows; what no
    call turned stays as it is."""
    if ids.dim() != 2:
        return ids
    turned = ids.t()
    for call in calls:
        given = [value for value in call.arguments.values() if isinstance(value, Tensor) and value.dtype == ids.dtype]
        if any(value.shape == turned.shape and torch.equal(value, turned) for value in given):
            return turned
        is_held = turned.shape != ids.shape and any(_is_same(value, ids) for value in given)
        if is_held and tells_rows(call.arguments, *turned.shape):
            return turned
    return ids


def _name_masks(holds: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Arguments that are called masks of padding: first those that share their first word with the ids.

    Those that share it with another tensor belong to that. A mask of the loss, or of what is special, has another name.
    """
    first_word = {name: name.split("_")[0] for name, value in arguments.items() if isinstance(value, Tensor)}
    mine = {first_word[name] for name in holds}
    others = {word for name, word in first_word.items() if not name.endswith("mask")} - mine
    alike = [name for name, word in first_word.items() if word in mine and name.endswith("mask")]
    padding = [name for name in first_word if re.search(r"pad\w*_mask$|^input_mask$", name)]
    return [*alike, *MASKS, *(name for name in padding if first_word[name] not in others)]


def _marks_padding(evidence: Evidence, name: str) -> bool:
    """Whether the mask is not 0 for padding: what the ids show decides, and where they show nothing its name."""
    if evidence.mask is None or name in MASKS:
        return False
    marked, ids = evidence.mask != 0, evidence.ids
    if ids is not None and evidence.pad is not None and bool(marked.any()) and not bool(marked.all()):
        pads = ids == evidence.pad
        if bool(pads[marked].all()) != bool(pads[~marked].all()):
            return bool(pads[marked].all())
    return "pad" in name


def take_local(value: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; others as they are."""
    return value.to_local() if hasattr(value, "to_local") else value


def _is_same(value: Any, embedded: Tensor) -> bool:
    """The same tensor, a view of it or of the same memory, or an equal copy."""
    if not isinstance(value, Tensor) or value.dtype != embedded.dtype:
        return False
    value = take_local(value)
    if value is embedded:
        return True
    if value.numel() != embedded.numel():
        return False
    if value.device == embedded.device and value.untyped_storage().data_ptr() == embedded.untyped_storage().data_ptr():
        return True
    return torch.equal(value.reshape(-1).cpu(), embedded.reshape(-1).cpu())


def _take(evidence: Evidence, call: ModuleCall, names: Mapping[str, Any]) -> None:
    arguments = call.arguments
    if evidence.mask is None and evidence.pairs is None:
        for name, value in _tensors(arguments, names["masks"]):
            if evidence.mask is not None or evidence.pairs is not None:
                break
            evidence.mask = fit_rows(value, evidence.shape, is_mask=True)
            is_negative = name == "input_mask" and "attention_mask" in call.parameters  # XLNet's
            if evidence.mask is not None and (is_negative or _marks_padding(evidence, name)):
                evidence.mask = (evidence.mask == 0).long()
            evidence.pairs = None if evidence.mask is not None else fit_pairs(value, evidence.shape)
    if evidence.mask is None and evidence.pairs is None:
        told = [fit_lengths(value, evidence.shape) for _, value in _tensors(arguments, names["lengths"])]
        evidence.mask = next((mask for mask in told if mask is not None), None)
    if evidence.positions is None:
        for _, value in list(_tensors(arguments, names["positions"]))[:1]:
            evidence.positions = fit_positions(value, evidence.shape)
    if evidence.labels is None:
        for _, value in list(_tensors(arguments, names["labels"]))[:1]:
            evidence.labels = fit_rows(value, evidence.shape)
    if evidence.borders is None:
        for _, value in list(_tensors(arguments, names["borders"]))[:1]:
            evidence.borders = value.reshape(-1) if not value.is_floating_point() else None


def _tensors(arguments: Mapping[str, Any], names: Sequence[str]) -> Iterable[tuple[str, Tensor]]:
    """Those of these names that hold a tensor, with it."""
    return [
        (name, take_local(value).detach().cpu()) for name in names if isinstance(value := arguments.get(name), Tensor)
    ]
