"""Records to flat buffers and back: pure layout, no communication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.core.records import Records
from areal_callbacks.core.schema import Schema, Vector
from areal_callbacks.core.summary import empty_rows

HEAD = 3
"""Values at the start of the MAX buffer: my keys are new, schema hash, negated schema hash."""


class Buffers(NamedTuple):
    """The two flat float64 buffers of one export."""

    maximum: Tensor
    total: Tensor


class _MaxViews(NamedTuple):
    """The sections of a MAX buffer, as views."""

    failed: Tensor
    rows: Tensor
    sums_present: Tensor
    maxima_present: Tensor
    maxima: Tensor


def pack(schema: Schema, families: Mapping[str, Records | None], buffers: Buffers) -> None:
    """Write a rank's records into buffers that hold -inf (MAX) and 0 (SUM) where it has nothing to say."""
    views = _max_views(schema, buffers.maximum)
    totals = buffers.total[: 2 * len(schema.summaries)].view(-1, 2)
    for index, family in enumerate(schema.families):
        if family in families:
            views.failed[index] = float(families[family] is None)
    filled = {family: records for family, records in families.items() if records is not None}
    _pack_summaries(schema, filled, views.rows, totals)
    sums = buffers.total[2 * len(schema.summaries) :]
    _pack_vectors(schema.sums, {f: r.sums for f, r in filled.items()}, views.sums_present, sums)
    _pack_vectors(schema.maxima, {f: r.maxima for f, r in filled.items()}, views.maxima_present, views.maxima)


def unpack(schema: Schema, buffers: Buffers) -> dict[str, Records | None]:
    """The reduced records on the CPU, per family; None for a family that failed on some rank."""
    maximum, total = buffers.maximum.cpu(), buffers.total.cpu()
    views = _max_views(schema, maximum)
    rows, recorded = _unpack_summaries(views.rows, total[: 2 * len(schema.summaries)].view(-1, 2))
    sums = _unpack_vectors(schema.sums, views.sums_present, total[2 * len(schema.summaries) :])
    maxima = _unpack_vectors(schema.maxima, views.maxima_present, views.maxima)
    reduced: dict[str, Records | None] = {}
    for family, failed in zip(schema.families, views.failed.tolist()):
        if failed == 1.0:
            reduced[family] = None
        elif failed == 0.0:
            places = [row for row in recorded if schema.summaries[row][0] == family]
            keys = tuple(schema.summaries[row][1:] for row in places)
            part = rows if len(places) == len(rows) else rows[torch.tensor(places, dtype=torch.long)]
            reduced[family] = Records(keys, part, sums.get(family, {}), maxima.get(family, {}))
    return reduced


def _pack_summaries(schema: Schema, families: Mapping[str, Records], extrema: Tensor, totals: Tensor) -> None:
    if not schema.summaries:
        return
    items = tuple((family, *key) for family, records in families.items() for key in records.keys)
    if not items:
        return
    rows = torch.cat([records.rows.to(extrema.device) for records in families.values() if records.keys])
    nan = rows[:, 2].isnan()
    packed = torch.stack(
        (
            torch.where(nan, -math.inf, -rows[:, 2]),
            torch.where(nan, -math.inf, rows[:, 3]),
            nan.double(),
            torch.ones_like(rows[:, 0]),
        ),
        1,
    )
    if items == schema.summaries:
        extrema.copy_(packed)
        totals.copy_(rows[:, :2])
    else:
        places = torch.tensor([schema.places[item] for item in items], device=extrema.device)
        extrema[places] = packed
        totals[places] = rows[:, :2]


def _unpack_summaries(extrema: Tensor, totals: Tensor) -> tuple[Tensor, list[int]]:
    """``[n, 4]`` summary rows and the places of those that some rank recorded."""
    rows = empty_rows(len(extrema))
    if len(extrema):
        nan = extrema[:, 2] == 1.0
        rows = torch.stack(
            (
                totals[:, 0],
                totals[:, 1],
                torch.where(nan, math.nan, -extrema[:, 0]),
                torch.where(nan, math.nan, extrema[:, 1]),
            ),
            1,
        )
    return rows, (extrema[:, 3] == 1.0).nonzero().flatten().tolist()


def _pack_vectors(
    schema: tuple[Vector, ...], vectors: Mapping[str, Mapping[str, Tensor]], present: Tensor, values: Tensor
) -> None:
    start = 0
    for index, (family, name, width) in enumerate(schema):
        vector = vectors.get(family, {}).get(name)
        if vector is not None and len(vector) == width:
            present[index] = 1.0
            values[start : start + width] = vector
        start += width


def _unpack_vectors(schema: tuple[Vector, ...], present: Tensor, values: Tensor) -> dict[str, dict[str, Tensor]]:
    vectors: dict[str, dict[str, Tensor]] = {}
    start = 0
    for (family, name, width), recorded in zip(schema, present.tolist()):
        if recorded == 1.0:
            vectors.setdefault(family, {})[name] = values[start : start + width]
        start += width
    return vectors


def _max_views(schema: Schema, maximum: Tensor) -> _MaxViews:
    sizes = (
        len(schema.families),
        4 * len(schema.summaries),
        len(schema.sums),
        len(schema.maxima),
        schema.maxima_width,
    )
    failed, rows, sums_present, maxima_present, maxima = maximum[HEAD : HEAD + sum(sizes)].split(sizes)
    return _MaxViews(failed, rows.view(-1, 4), sums_present, maxima_present, maxima)
