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
    def make(cls, maximum: int, total: int, device: torch.device) -> Buffers:
        """Buffers of neutral values, which change no reduction."""
        values = torch.zeros(maximum + total, dtype=torch.float64, device=device)
        values[:maximum].fill_(-math.inf)
        return cls(values, maximum)

    def on_host(self) -> Buffers:
        """The same on the CPU, in one copy."""
        return Buffers(self.values.cpu(), self.capacity)

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


class Spots(NamedTuple):
    """Which of the values that a rank brings go to which places of a section."""

    taken: Places
    places: Places


@dataclass(frozen=True)
class Plan:
    """Where the records of one rank lie in the buffers of a schema; good for as long as it brings the same keys."""

    schema: Schema
    families: Spots
    present: Spots
    summaries: Spots
    sums: Spots
    maxima: Spots

    @classmethod
    def of(cls, schema: Schema, mine: Schema, device: torch.device) -> Plan:
        """The plan for what ``mine`` lists; what the schema lacks is left out."""
        return cls(
            schema,
            _spots(mine.families, schema.families, device),
            _spots(_vectors_of(mine), _vectors_of(schema), device),
            _spots(mine.summaries, schema.summaries, device),
            _spots(mine.sums, schema.sums, device, _width),
            _spots(mine.maxima, schema.maxima, device, _width),
        )


def signature(families: Families) -> Signature:
    """What decides about the plan, cheap to make and to compare."""
    return tuple(
        (name,) if part is None else (name, part.keys, _widths(part.sums), _widths(part.maxima))
        for name, part in families.items()
    )


def pack(plan: Plan, families: Families, buffers: Buffers) -> None:
    """Write a rank's records into buffers of neutral values."""
    views = _sections(plan.schema, buffers)
    filled = [records for records in families.values() if records is not None]
    failed = torch.tensor([float(part is None) for part in families.values()], dtype=torch.float64, device="cpu")
    _put(plan.families, failed.to(views.failed.device), views.failed)
    views.present[plan.present.places] = 1.0
    rows = [records.rows for records in filled if records.keys]
    if rows:
        merged = _join(rows, views.totals.device)
        _put(plan.summaries, merged[:, :2], views.totals.view(-1, 2))
        _put_flagged(
            plan.summaries,
            merged[:, 2:] * merged.new_tensor((-1.0, 1.0)),
            views.extrema.view(-1, 2),
            views.extrema_flags.view(-1, 2),
        )
    sums = [vector for records in filled for vector in records.sums.values()]
    if sums:
        _put(plan.sums, _join(sums, views.sums.device), views.sums)
    maxima = [vector for records in filled for vector in records.maxima.values()]
    if maxima:
        _put_flagged(plan.maxima, _join(maxima, views.maxima.device), views.maxima, views.maxima_flags)


def unpack(schema: Schema, buffers: Buffers) -> dict[str, Records | None]:
    """Reduced buffers on the CPU as records per family; None for one that failed on a rank or whose vectors differ in
    width."""
    views = _sections(schema, buffers)
    extrema = _restore(views.extrema, views.extrema_flags).view(-1, 2) * views.extrema.new_tensor((-1.0, 1.0))
    rows = torch.cat((views.totals.view(-1, 2), extrema), 1)
    recorded = views.extrema_flags[::2] > -math.inf
    reduced: dict[str, Records | None] = {}
    for family, failed in zip(schema.families, views.failed.tolist()):
        if failed == 1.0:
            reduced[family] = None
        elif failed == 0.0:
            reduced[family] = Records(*_rows_of(schema, family, rows, recorded))
    brought = views.present.tolist()
    maxima = _restore(views.maxima, views.maxima_flags)
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


def _put(spots: Spots, values: Tensor, section: Tensor) -> None:
    section[spots.places] = values[spots.taken]


def _put_flagged(spots: Spots, values: Tensor, section: Tensor, flags: Tensor) -> None:
    """The values with -inf for NaN, and beside them whether they were NaN."""
    nan = values.isnan()
    _put(spots, torch.where(nan, -math.inf, values), section)
    _put(spots, nan.double(), flags)


def _restore(values: Tensor, flags: Tensor) -> Tensor:
    return torch.where(flags == 1.0, math.nan, values)


def _join(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.cat([part.detach().to(device, torch.float64) for part in parts])


def _widths(vectors: Mapping[str, Tensor]) -> tuple[tuple[str, int], ...]:
    return tuple((name, len(vector)) for name, vector in vectors.items())


def _vectors_of(schema: Schema) -> list[tuple[bool, Vector]]:
    return [(True, vector) for vector in schema.sums] + [(False, vector) for vector in schema.maxima]


def _width(vector: Vector) -> int:
    return vector[2]


def _one(_: object) -> int:
    return 1


def _spots(wanted: Sequence[T], section: Sequence[T], device: torch.device, width: Callable[[T], int] = _one) -> Spots:
    if wanted == section:
        return Spots(slice(None), slice(None))
    mine, starts = (dict(zip(items, itertools.accumulate(map(width, items), initial=0))) for items in (wanted, section))
    covered = [item for item in wanted if item in starts]
    widths = [width(item) for item in covered]
    taken = _indices([mine[item] for item in covered], widths, device)
    return Spots(
        slice(None) if len(covered) == len(wanted) else taken,
        _indices([starts[item] for item in covered], widths, device),
    )


def _indices(starts: Iterable[int], widths: Iterable[int], device: torch.device) -> Tensor:
    indices = [index for start, width in zip(starts, widths) for index in range(start, start + width)]
    return torch.tensor(indices, dtype=torch.long, device="cpu").to(device)


def _sections(schema: Schema, buffers: Buffers) -> _Sections:
    rows, vectors = 2 * len(schema.summaries), len(schema.sums) + len(schema.maxima)
    flagged = (rows, schema.maximum_width)
    parts = (len(schema.families), vectors, *flagged, *flagged)
    maximum = buffers.maximum[HEAD : HEAD + sum(parts)].split_with_sizes(parts)
    total = buffers.total[: rows + schema.sum_width].split_with_sizes((rows, schema.sum_width))
    return _Sections(*maximum, *total)
