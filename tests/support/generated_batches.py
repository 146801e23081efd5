"""Batches built out of parts: the same sequences padded or packed in every way that models take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PAD, IGNORED, VOCABULARY = 0, -100, 64

PADDED = ("right", "left", "none", "labels", "choices", "hidden")
PACKED = ("segments", "pairs", "additive", "positions", "flat", "three_axes", "four_axes", "borders")

OF_DECODERS = ("right", "left", "none", "labels", "segments", "pairs", "additive", "positions", "borders")
OF_ENCODERS = ("right", "left", "none")
EVERY = (*PADDED, *PACKED)


@dataclass(frozen=True)
class Batch:
    """Arguments of a model, and the lengths of the sequences that they were made of."""

    arguments: dict[str, Tensor]
    lengths: list[int]


def make_batch(layout: str, rows: list[list[int]], pads: int) -> Batch:
    """Lay sequences out.

    Args:
        layout: one of :data:`EVERY`.
        rows: lengths of the sequences of each row; a padded layout takes the first of each, and those without rows
            (``flat``, ``borders``) take the first row.
        pads: further padding, behind the longest row.
    """
    if layout in PADDED:
        rows = [row[:1] for row in rows]
    if layout == "none":
        rows = [rows[0]] * len(rows)
        pads = 0
    if layout in ("flat", "borders"):
        rows = rows[:1]
    width = max(map(sum, rows)) + pads
    numbers = torch.tensor([_number(row, width, left=layout == "left") for row in rows])
    generator = torch.Generator().manual_seed(width)
    ids = torch.randint(1, VOCABULARY, numbers.shape, generator=generator).masked_fill(numbers == 0, PAD)
    labels = ids.masked_fill(numbers == 0, IGNORED)
    arguments = {"input_ids": ids, "labels": labels, **_describe(layout, numbers)}
    if layout == "choices":
        arguments = {name: value[None] for name, value in arguments.items() if name != "labels"}
    return Batch(arguments, [length for row in rows for length in row])


def _number(row: list[int], width: int, *, left: bool) -> list[int]:
    """The number of each id's sequence, from 1; 0 is padding."""
    numbers = [index + 1 for index, length in enumerate(row) for _ in range(length)]
    padding = [0] * (width - len(numbers))
    return padding + numbers if left else numbers + padding


def _describe(layout: str, numbers: Tensor) -> dict[str, Tensor]:
    if layout in ("right", "left", "choices"):
        return {"attention_mask": (numbers > 0).long()}
    if layout == "hidden":
        return {"key_padding_mask": numbers == 0}
    if layout == "segments":
        return {"attention_mask": numbers}
    if layout in ("pairs", "additive"):
        return {"attention_mask": _pairs(numbers, additive=layout == "additive")}
    if layout == "borders":
        counts = torch.unique_consecutive(numbers[numbers > 0], return_counts=True)[1]
        borders = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        return {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
    axes = {"positions": None, "flat": 0, "three_axes": 3, "four_axes": 4}
    if layout not in axes:
        return {}
    positions = _positions(numbers)
    if layout == "positions":
        return {"position_ids": positions}
    return {"position_ids": positions[0] if layout == "flat" else positions.expand(axes[layout], -1, -1)}


def _pairs(numbers: Tensor, *, additive: bool) -> Tensor:
    """Causal attention inside each sequence; padding sees itself, so that no row of the softmax is empty."""
    same = (numbers[:, :, None] == numbers[:, None, :]) & (numbers[:, :, None] > 0)
    seen = (same.tril() | torch.eye(numbers.shape[1], dtype=torch.bool))[:, None]
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min) if additive else seen


def _positions(numbers: Tensor) -> Tensor:
    """Positions from 0 in each sequence; each pad is at position 0."""
    positions = torch.zeros_like(numbers)
    for row, result in zip(numbers.tolist(), positions):
        for index in range(1, len(row)):
            if row[index] and row[index] == row[index - 1]:
                result[index] = result[index - 1] + 1
    return positions
