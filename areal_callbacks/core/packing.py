"""Records to flat buffers and back: pure layout, no communication.

The MAX buffer of a schema holds, in this order: the head; per family whether it failed; per vector whether anyone
brings it; minus the minimum and the maximum of every summary; the vectors that take the maximum; and a flag for each of
those extrema and maxima, because a backend's MAX may lose a NaN: 1 for NaN, 0 for a number. -inf is "not from me".
The SUM buffer holds sum and count of every summary, then the vectors that add.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from areal_callbacks.core.records import Key, Records
from areal_callbacks.core.schema import Places, Schema, Vector

T = TypeVar("T")

HEAD = 3
"""Values at the start of the MAX buffer: my keys are new, schema hash, negated schema hash."""

Families: TypeAlias = Mapping[str, Records | None]
"""Name → records of one source; None where the source failed on this rank."""

Signature: TypeAlias = tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Buffers:
    """The two flat float64 buffers of one export, side by side in one tensor."""

    values: Tensor
    capacity: int

    @classmethod
    def sized(cls, maximum: int, total: int, device: torch.device) -> Buffers:
        """Buffers that say nothing."""
        values = torch.zeros(maximum + total, dtype=torch.float64, device=device)
        values[:maximum].fill_(-math.inf)
        return cls(values, maximum)

    @property
    def maximum(self) -> Tensor:
        """The MAX buffer, a view."""
        return self.values[: self.capacity]

    @property
    def total(self) -> Tensor:
        """The SUM buffer, a view."""
        return self.values[self.capacity :]


class _Sections(NamedTuple):
    """The sections of both buffers, as views."""

    failed: Tensor
    present: Tensor
    extrema: Tensor
    maxima: Tensor
    extrema_flags: Tensor
    maxima_flags: Tensor
    totals: Tensor
    sums: Tensor


def sizes(schema: Schema) -> tuple[int, int]:
    """Values in the MAX and in the SUM buffer."""
    rows, vectors = len(schema.summaries), len(schema.sums) + len(schema.maxima)
    flagged = 2 * rows + schema.maximum_width
    return HEAD + len(schema.families) + vectors + 2 * flagged, 2 * rows + schema.sum_width


@dataclass(frozen=True)
class Plan:
    """Where the records of one rank lie in the buffers of a schema; good for as long as it brings the same keys."""

    schema: Schema
    families: Places
    present: Places
    summaries: Places
    sums: Places
    maxima: Places

    @classmethod
    def of(cls, schema: Schema, mine: Schema) -> Plan:
        """The plan for what ``mine`` lists; KeyError if the schema does not cover it."""
        vectors = [(True, *vector) for vector in schema.sums] + [(False, *vector) for vector in schema.maxima]
        brought = [(True, *vector) for vector in mine.sums] + [(False, *vector) for vector in mine.maxima]
        return cls(
            schema,
            _places(mine.families, schema.families),
            _places(brought, vectors),
            _places(mine.summaries, schema.summaries),
            _places(_elements(mine.sums), _elements(schema.sums)),
            _places(_elements(mine.maxima), _elements(schema.maxima)),
        )


def signature(families: Families) -> Signature:
    """What decides about the plan, cheap to make and to compare."""
    return tuple(
        (name,) if part is None else (name, part.keys, _widths(part.sums), _widths(part.maxima))
        for name, part in families.items()
    )


def pack(plan: Plan, families: Families, buffers: Buffers) -> None:
    """Write a rank's records into buffers that say nothing."""
    views = _sections(plan.schema, buffers)
    filled = [records for records in families.values() if records is not None]
    failed = [float(records is None) for records in families.values()]
    views.failed[plan.families] = torch.tensor(failed, dtype=torch.float64, device=views.failed.device)
    views.present[plan.present] = 1.0
    rows = [records.rows for records in filled if records.keys]
    if rows:
        merged = _joined(rows, views.totals.device)
        views.totals.view(-1, 2)[plan.summaries] = merged[:, :2]
        extrema, flags = _flagged(merged[:, 2:] * merged.new_tensor((-1.0, 1.0)))
        views.extrema.view(-1, 2)[plan.summaries] = extrema
        views.extrema_flags.view(-1, 2)[plan.summaries] = flags
    sums = [vector for records in filled for vector in records.sums.values()]
    if sums:
        views.sums[plan.sums] = _joined(sums, views.sums.device)
    maxima = [vector for records in filled for vector in records.maxima.values()]
    if maxima:
        views.maxima[plan.maxima], views.maxima_flags[plan.maxima] = _flagged(_joined(maxima, views.maxima.device))


def unpack(schema: Schema, buffers: Buffers) -> dict[str, Records | None]:
    """The reduced records on the CPU, per family; None for one that failed on a rank or whose vectors do not fit."""
    views = _sections(schema, Buffers(buffers.values.cpu(), buffers.capacity))
    extrema = _restored(views.extrema, views.extrema_flags).view(-1, 2) * views.extrema.new_tensor((-1.0, 1.0))
    rows = torch.cat((views.totals.view(-1, 2), extrema), 1)
    recorded = views.extrema_flags[::2] > -math.inf
    reduced: dict[str, Records | None] = {}
    for family, failed in zip(schema.families, views.failed.tolist()):
        if failed == 1.0:
            reduced[family] = None
        elif failed == 0.0:
            reduced[family] = Records(*_rows_of(schema, family, rows, recorded))
    brought = views.present.tolist()
    maxima = _restored(views.maxima, views.maxima_flags)
    _put_vectors(reduced, _vectors(schema.sums, views.sums, brought), lambda records: records.sums)
    _put_vectors(reduced, _vectors(schema.maxima, maxima, brought[len(schema.sums) :]), lambda records: records.maxima)
    return reduced


def _rows_of(schema: Schema, family: str, rows: Tensor, recorded: Tensor) -> tuple[tuple[Key, ...], Tensor]:
    """Keys and rows of what any rank recorded."""
    places, keys = schema.rows_of(family)
    here = recorded[places]
    if bool(here.all()):
        return keys, rows[places]
    return tuple(itertools.compress(keys, here.tolist())), rows[places][here]


def _vectors(section: tuple[Vector, ...], values: Tensor, brought: list[float]) -> Iterator[tuple[str, str, Tensor]]:
    """(family, name, vector) of what any rank brought."""
    parts = values.split_with_sizes([width for *_, width in section])
    return ((family, name, part) for (family, name, _), part, here in zip(section, parts, brought) if here == 1.0)


def _put_vectors(
    reduced: dict[str, Records | None],
    vectors: Iterable[tuple[str, str, Tensor]],
    field: Callable[[Records], dict[str, Tensor]],
) -> None:
    for family, name, values in vectors:
        records = reduced.get(family)
        if records is None:
            continue
        if name in field(records):
            reduced[family] = None  # ranks bring different widths
        else:
            field(records)[name] = values


def _flagged(values: Tensor) -> tuple[Tensor, Tensor]:
    """The values with -inf for NaN, and whether they were NaN."""
    nan = values.isnan()
    return torch.where(nan, -math.inf, values), nan.double()


def _restored(values: Tensor, flags: Tensor) -> Tensor:
    return torch.where(flags == 1.0, math.nan, values)


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.cat([part.detach().to(device, torch.float64) for part in parts])


def _widths(vectors: Mapping[str, Tensor]) -> tuple[tuple[str, int], ...]:
    return tuple((name, len(vector)) for name, vector in vectors.items())


def _elements(vectors: Iterable[Vector]) -> list[tuple[Vector, int]]:
    return [(vector, element) for vector in vectors for element in range(vector[2])]


def _places(wanted: Sequence[T], section: Sequence[T]) -> Places:
    if list(wanted) == list(section):
        return slice(None)
    place = {item: index for index, item in enumerate(section)}
    return torch.tensor([place[item] for item in wanted], dtype=torch.long, device="cpu")


def _sections(schema: Schema, buffers: Buffers) -> _Sections:
    rows, vectors = 2 * len(schema.summaries), len(schema.sums) + len(schema.maxima)
    flagged = (rows, schema.maximum_width)
    parts = (len(schema.families), vectors, *flagged, *flagged)
    maximum = buffers.maximum[HEAD : HEAD + sum(parts)].split_with_sizes(parts)
    total = buffers.total[: rows + schema.sum_width].split_with_sizes((rows, schema.sum_width))
    return _Sections(*maximum, *total)
