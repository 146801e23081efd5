"""Rows of embedded ids as sequences: where each begins, and which ids are padding."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.verify.evidence import Evidence

IGNORED = -100
"""The label that no loss sees."""


def measure(evidence: Evidence) -> list[int]:
    """Real ids in every sequence, row by row; sequences without any are none."""
    segments = number_segments(evidence)
    real = find_real(evidence, segments)
    lengths = []
    for row, kept in zip(segments, real):
        _, counts = torch.unique_consecutive(row[kept], return_counts=True)
        lengths.extend(counts.tolist())
    return lengths


def number_segments(evidence: Evidence) -> Tensor:
    """``[B, T]``: ids of one row with the same number belong together; −1 lies behind the last border."""
    if evidence.borders is not None:
        return _by_borders(evidence.borders, evidence.shape)
    if evidence.mask is not None and int(evidence.mask.max()) > 1:
        return evidence.mask.long()
    if evidence.pairs is not None:
        return _by_pairs(evidence.pairs)
    if evidence.positions is not None:
        return _by_positions(evidence.positions)
    return torch.zeros(evidence.shape, dtype=torch.long)


def find_real(evidence: Evidence, segments: Tensor) -> Tensor:
    """bool ``[B, T]``: ids that are no padding.

    A mask decides. Where it is missing, or whole and the rows are packed, an id at either end of its row is padding if
    it is the padding id and

    * its label is −100, or
    * it stands in a sequence of padding ids only, or
    * there are no labels, and it does not end or begin texts, too.

    Where no padding id is known, several ids are that follow each other, each a sequence of its own with the label
    −100. The inputs of a decoder end where its labels end, also where a mask goes on.
    """
    real = segments >= 0
    if evidence.mask is not None:
        real &= evidence.mask != 0
    if evidence.pairs is not None:
        real &= evidence.pairs.diagonal(dim1=-2, dim2=-1)
    is_whole = evidence.mask is None or bool((evidence.mask != 0).all())
    if evidence.decodes:
        return real & _before_labels_end(evidence.labels)
    is_packed = any(part is not None for part in (evidence.positions, evidence.borders, evidence.pairs))
    if is_whole and (evidence.mask is None or is_packed):
        real &= ~_at_the_ends(_is_padding(evidence, segments, real) | ~real)
    return real


def _by_borders(borders: Tensor, shape: tuple[int, int]) -> Tensor:
    index = torch.arange(shape[0] * shape[1])
    numbers = torch.bucketize(index, borders.long().contiguous(), right=True) - 1
    return torch.where(index < borders[-1], numbers, -1).view(shape)


def _by_pairs(pairs: Tensor) -> Tensor:
    """A sequence begins where neither neighbour sees the other."""
    sees_last = pairs.diagonal(-1, -2, -1)
    sees_next = pairs.diagonal(1, -2, -1)
    return _number(~(sees_last | sees_next))


def _by_positions(positions: Tensor) -> Tensor:
    """A sequence begins where every axis is 0, or falls."""
    falls = (positions[..., 1:] < positions[..., :-1]).all(0)
    return _number(falls | (positions[..., 1:] == 0).all(0))


def _number(begins: Tensor) -> Tensor:
    """Numbers of sequences from ``[B, T - 1]``, whether each id but the first begins one."""
    first = torch.zeros(len(begins), 1, dtype=torch.long)
    return torch.cat([first, begins.long().cumsum(-1)], dim=-1)


def _before_labels_end(labels: Tensor | None) -> Tensor | bool:
    """bool ``[B, T]``: up to the last label of each row."""
    if labels is None:
        return True
    return (labels != IGNORED).long().flip(-1).cumsum(-1).flip(-1) > 0


def _is_padding(evidence: Evidence, segments: Tensor, real: Tensor) -> Tensor:
    nothing = torch.zeros_like(real)
    ignored = nothing if evidence.labels is None else evidence.labels == IGNORED
    if evidence.ids is None or evidence.pad is None:
        alone = _is_alone(segments)
        return ignored & alone & (_shift(alone, 1) | _shift(alone, -1))
    pads = evidence.ids == evidence.pad
    if evidence.labels is None and not evidence.ends:
        return pads
    return pads & (ignored | _fills_its_segment(pads, segments))


def _is_alone(segments: Tensor) -> Tensor:
    differs = segments[:, 1:] != segments[:, :-1]
    edge = torch.ones(len(segments), 1, dtype=torch.bool)
    return torch.cat([edge, differs], -1) & torch.cat([differs, edge], -1)


def _shift(flags: Tensor, by: int) -> Tensor:
    moved = flags.roll(by, -1)
    moved[:, 0 if by > 0 else -1] = False
    return moved


def _fills_its_segment(pads: Tensor, segments: Tensor) -> Tensor:
    """Padding ids in a segment of nothing else, in rows with other segments."""
    fills = torch.zeros_like(pads)
    for row, numbers, result in zip(pads, segments, fills):
        for number in numbers.unique():
            inside = numbers == number
            result[inside] = bool(row[inside].all()) and not bool(inside.all())
    return fills


def _at_the_ends(flags: Tensor) -> Tensor:
    """The runs of True that touch an end of the row; none in a row that is True throughout."""
    leading = flags.long().cumprod(-1).bool()
    trailing = flags.flip(-1).long().cumprod(-1).flip(-1).bool()
    return (leading | trailing) & ~flags.all(-1, keepdim=True)
