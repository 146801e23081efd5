"""Real text that every machine has, as a byte-level data set: the sources of Python's own standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

PAD = 256
VOCABULARY = 257  # the 256 bytes and the padding


class ByteText(Dataset[dict[str, Tensor]]):
    """Rows of ``length`` tokens: whole source lines as long as they fit, then padding.

    Every item holds ``input_ids``, ``attention_mask`` and ``labels`` (-100 on padding), int64 ``[length]``. The same
    Python gives the same rows in the same order. Every tenth file belongs to the evaluation split.

    Args:
        split: ``"train"`` or ``"eval"``.
        rows: how many rows to read.
        length: tokens in a row.
    """

    def __init__(self, split: Literal["train", "eval"] = "train", *, rows: int = 1024, length: int = 256) -> None:
        packed = list(islice(_pack(_lines(split, length), length), rows))
        if len(packed) < rows:
            raise ValueError(f"the standard library's sources fill {len(packed)} {split} rows, not {rows}")
        self.input_ids = torch.full((rows, length), PAD)
        for row, text in zip(self.input_ids, packed):
            row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        input_ids = self.input_ids[index]
        real = input_ids != PAD
        return {"input_ids": input_ids, "attention_mask": real.long(), "labels": input_ids.masked_fill(~real, -100)}


def _lines(split: str, length: int) -> Iterator[bytes]:
    """Source lines; one that is longer than a row comes in pieces."""
    for number, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        if (number % 10 == 9) == (split == "eval"):
            for line in path.read_bytes().splitlines(keepends=True):
                yield from (line[start : start + length] for start in range(0, len(line), length))


def _pack(lines: Iterator[bytes], length: int) -> Iterator[bytes]:
    row = b""
    for line in lines:
        if len(row) + len(line) > length:
            yield row
            row = b""
        row += line
