"""Expert loads as a line of metrics.jsonl holds them: counts of a fixed width, deflated, in base64."""

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_callbacks.writers.corrupt_lines import CORRUPT, read_integer, refuse

MOST_COUNTS = 1 << 21
"""Expert counts of one line."""

_TYPE_CODES = {"uint32": "I", "uint64": "Q"}
_MOST_LAYERS = 1 << 16
_LONGEST_STACK = 1_000


@dataclass(frozen=True)
class ExpertLoadsRecord:
    """Routed assignments of one export, ``counts[row][expert]``, row by row the layers ``layers`` of ``stack``."""

    step: int
    stack: str
    layers: list[int]
    experts: int
    counts: list[list[int]]


@dataclass(frozen=True)
class PackedLoads:
    """The same with its counts as they were read: unpacking them takes most of the time that reading a file takes.

    Attributes:
        where: names the file and the line.
    """

    where: str
    step: int
    stack: str
    layers: list[int]
    experts: int
    _counts: str
    _type_code: str

    @classmethod
    def of(cls, where: str, line: Mapping[str, Any]) -> PackedLoads:
        """The loads of a line; raises one of :data:`CORRUPT` if it cannot be one, whatever its counts."""
        layers = [read_integer("layer", layer) for layer in line["layers"]]
        experts, stack = read_integer("experts", line["experts"]), str(line["stack"])
        _check_shape(len(layers), experts, stack)
        step, code, counts = read_integer("step", line["step"]), _TYPE_CODES[line["dtype"]], str(line["counts"])
        if len(counts) > 1_000 + 1.5 * len(layers) * experts * array(code).itemsize:
            raise ValueError(f"{len(counts):,} characters for {len(layers)} layers of {experts} experts")
        return cls(where, step, stack, layers, experts, counts, code)

    def rows(self) -> list[array[int]]:
        """The counts of each layer.

        Raises:
            ValueError: they are not as many as the line says, or no counts at all; names the file and the line.
        """
        values, experts = array(self._type_code), self.experts
        try:
            values.frombytes(_inflate(self._counts, len(self.layers), experts, values.itemsize))
        except CORRUPT as error:
            raise refuse(self.where, error) from None
        if sys.byteorder == "big":
            values.byteswap()
        return [values[row * experts : (row + 1) * experts] for row in range(len(self.layers))]

    def unpack(self) -> ExpertLoadsRecord:
        """The record; raises as :meth:`rows` does."""
        counts = [row.tolist() for row in self.rows()]
        return ExpertLoadsRecord(self.step, self.stack, self.layers, self.experts, counts)


def pack_counts(counts: Sequence[int]) -> dict[str, str]:
    """The fields ``counts`` and ``dtype`` of a line.

    Only runs of one byte are looked for: longer matches, which counts hardly have, would take ten times the time.
    """
    dtype = "uint32" if max(counts, default=0) < 2**32 else "uint64"
    values = array(_TYPE_CODES[dtype], counts)
    if sys.byteorder == "big":
        values.byteswap()
    packer = zlib.compressobj(strategy=zlib.Z_RLE)
    packed = packer.compress(values.tobytes()) + packer.flush()
    return {"counts": base64.b64encode(packed).decode(), "dtype": dtype}


def _check_shape(layers: int, experts: int, stack: str) -> None:
    if layers > _MOST_LAYERS or not 0 <= experts <= MOST_COUNTS or layers * experts > MOST_COUNTS:
        raise ValueError(f"{layers:,} layers of {experts:,} experts are not {MOST_COUNTS:,} counts or fewer")
    if len(stack) > _LONGEST_STACK:
        raise ValueError(f"the name of the stack has {len(stack):,} characters")


def _inflate(counts: str, layers: int, experts: int, size: int) -> bytes:
    """The counts, of ``size`` bytes each; more than there should be are never unpacked."""
    expected = layers * experts * size
    inflater = zlib.decompressobj()
    data = inflater.decompress(base64.b64decode(counts, validate=True), expected + 1)
    if len(data) != expected or not inflater.eof:
        found = f"more than {layers * experts}" if len(data) > expected else str(len(data) // size)
        raise ValueError(f"{found} counts for {layers} layers of {experts} experts")
    return data
