"""Which numbers an export of a process group carries, in an order that all its ranks agree on."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from areal_callbacks.core.records import Key, Records
from areal_callbacks.core.types import ReduceType

T = TypeVar("T")

Places: TypeAlias = slice | Tensor
"""Where values lie in a section: all of it in order, or at these indices."""
Row: TypeAlias = tuple[str, str, ReduceType]
"""(family, key, ReduceType)."""
Vector: TypeAlias = tuple[str, str, int]
"""(family, name, width)."""

# Enum members find their values, and values their members, in Python.
_TEXT = {kind: kind.value for kind in ReduceType}
_KIND = {text: kind for kind, text in _TEXT.items()}


@dataclass(frozen=True)
class Schema:
    """A set of keys in an agreed order. It only grows, and every rank of a group holds the same.

    Attributes:
        families: the sources, e.g. ``stats``, ``throughput``, ``moe_balance``.
        summaries: the summary rows.
        sums: the vectors that add over ranks.
        maxima: the vectors that take their maximum over ranks.
    """

    families: tuple[str, ...] = ()
    summaries: tuple[Row, ...] = ()
    sums: tuple[Vector, ...] = ()
    maxima: tuple[Vector, ...] = ()

    @classmethod
    def of(cls, families: Mapping[str, Records | None]) -> Schema:
        """The keys that these families bring; a failed family (None) brings its name."""
        filled = {family: records for family, records in families.items() if records is not None}
        return cls(
            tuple(families),
            tuple((family, *key) for family, records in filled.items() for key in records.keys),
            tuple((family, name, len(v)) for family, records in filled.items() for name, v in records.sums.items()),
            tuple((family, name, len(v)) for family, records in filled.items() for name, v in records.maxima.items()),
        )

    @classmethod
    def decode(cls, data: bytes) -> Schema:
        """The schema that another rank encoded."""
        families, summaries, sums, maxima = json.loads(data)
        return cls(
            tuple(families),
            tuple((family, key, _KIND[kind]) for family, key, kind in summaries),
            tuple((family, name, width) for family, name, width in sums),
            tuple((family, name, width) for family, name, width in maxima),
        )

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.families) + len(self.summaries) + len(self.sums) + len(self.maxima)

    @classmethod
    def union_of(cls, schemas: Iterable[Schema]) -> Schema:
        """The entries of all schemas, in the order in which they first occur."""
        families: dict[str, None] = {}
        summaries: dict[Row, None] = {}
        sums: dict[Vector, None] = {}
        maxima: dict[Vector, None] = {}
        for schema in schemas:
            families.update(dict.fromkeys(schema.families))
            summaries.update(dict.fromkeys(schema.summaries))
            sums.update(dict.fromkeys(schema.sums))
            maxima.update(dict.fromkeys(schema.maxima))
        return cls(tuple(families), tuple(summaries), tuple(sums), tuple(maxima))

    def union(self, other: Schema) -> Schema:
        """This schema and, behind its keys, those that only the other has."""
        return Schema.union_of((self, other))

    def minus(self, other: Schema) -> Schema:
        """What only this schema has, in its order."""
        return Schema(
            _minus(self.families, other.families),
            _minus(self.summaries, other.summaries),
            _minus(self.sums, other.sums),
            _minus(self.maxima, other.maxima),
        )

    @functools.cached_property
    def ordered(self) -> Schema:
        """The same entries in an order that does not depend on who recorded what first."""
        return Schema(
            tuple(sorted(self.families)),
            tuple(sorted(self.summaries, key=lambda row: (row[0], row[1], _TEXT[row[2]]))),
            tuple(sorted(self.sums)),
            tuple(sorted(self.maxima)),
        )

    def encode(self) -> bytes:
        """The schema as bytes for other ranks."""
        rows = [(family, key, _TEXT[kind]) for family, key, kind in self.summaries]
        return json.dumps((self.families, rows, self.sums, self.maxima), separators=(",", ":")).encode()

    @functools.cached_property
    def identity(self) -> float:
        """52 bits of a hash: a whole number that float64 holds exactly."""
        digest = hashlib.blake2b(self.encode(), digest_size=8).digest()
        return float(int.from_bytes(digest, "little") >> 12)

    def rows_of(self, family: str) -> tuple[Places, tuple[Key, ...]]:
        """Where the summary rows of a family lie, and their keys."""
        return self._rows_of_families[family]

    @functools.cached_property
    def _rows_of_families(self) -> dict[str, tuple[Places, tuple[Key, ...]]]:
        grouped: dict[str, list[int]] = {family: [] for family in self.families}
        for row, (family, *_) in enumerate(self.summaries):
            grouped[family].append(row)
        every = list(range(len(self.summaries)))
        return {
            family: (
                slice(None) if rows == every else torch.tensor(rows, dtype=torch.long, device="cpu"),
                tuple(self.summaries[row][1:] for row in rows),
            )
            for family, rows in grouped.items()
        }

    @functools.cached_property
    def sum_width(self) -> int:
        """Values in all vectors that add."""
        return sum(width for *_, width in self.sums)

    @functools.cached_property
    def maximum_width(self) -> int:
        """Values in all vectors that take the maximum."""
        return sum(width for *_, width in self.maxima)


def _minus(first: tuple[T, ...], second: Iterable[T]) -> tuple[T, ...]:
    known = frozenset(second)
    return tuple(entry for entry in first if entry not in known)
