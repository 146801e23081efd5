"""Which numbers an export of a process group carries, and where each lies in the two reduced buffers."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from areal_callbacks.core.records import Records
from areal_callbacks.core.types import ReduceType

Vector: TypeAlias = tuple[str, str, int]
"""(family, name, width)."""


@dataclass(frozen=True)
class Schema:
    """A set of keys in an agreed order. It only grows, and every rank of a group holds the same.

    Attributes:
        families: the sources, e.g. ``stats``, ``throughput``, ``moe_balance``.
        summaries: (family, key, ReduceType) per summary row.
        sums: (family, name, width) per vector that adds over ranks.
        maxima: (family, name, width) per vector that takes its maximum over ranks.
    """

    families: tuple[str, ...] = ()
    summaries: tuple[tuple[str, str, ReduceType], ...] = ()
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

    def union(self, other: Schema) -> Schema:
        """This schema and, behind its keys, those that only the other has."""
        return Schema(
            _union(self.families, other.families),
            _union(self.summaries, other.summaries),
            _union(self.sums, other.sums),
            _union(self.maxima, other.maxima),
        )

    def covers(self, other: Schema) -> bool:
        """Whether the other schema holds nothing new."""
        if self == other:
            return True
        return (
            set(other.families) <= set(self.families)
            and self.places.keys() >= set(other.summaries)
            and set(other.sums) <= set(self.sums)
            and set(other.maxima) <= set(self.maxima)
        )

    @functools.cached_property
    def places(self) -> dict[tuple[str, str, ReduceType], int]:
        """The row of every summary."""
        return {item: row for row, item in enumerate(self.summaries)}

    @functools.cached_property
    def identity(self) -> float:
        """52 bits of a hash: a whole number that float64 holds exactly."""
        text = repr((self.families, [(f, k, t.value) for f, k, t in self.summaries], self.sums, self.maxima))
        return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 12)

    @functools.cached_property
    def sums_width(self) -> int:
        """Values in all vectors that add."""
        return sum(width for *_, width in self.sums)

    @functools.cached_property
    def maxima_width(self) -> int:
        """Values in all vectors that take the maximum."""
        return sum(width for *_, width in self.maxima)

    @functools.cached_property
    def max_size(self) -> int:
        """Values behind the head of the MAX buffer: family flags, four per summary, vector flags, maxima."""
        flags = len(self.families) + len(self.sums) + len(self.maxima)
        return flags + 4 * len(self.summaries) + self.maxima_width

    @functools.cached_property
    def sum_size(self) -> int:
        """Values in the SUM buffer: two per summary, then the vectors."""
        return 2 * len(self.summaries) + self.sums_width


def _union(first: tuple[object, ...], second: Iterable[object]) -> tuple[object, ...]:  # order of first, then new ones
    return tuple(dict.fromkeys((*first, *second)))
