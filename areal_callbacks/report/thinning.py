"""Fewer points for long series, without losing an extremum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from areal_callbacks.report.history import Series

POINTS_PER_SERIES = 2_000
POINTS_PER_REPORT = 250_000
_FEWEST_POINTS = 200


def buckets_for(steps: int, series: int, runs: int = 1) -> int:
    """Into how many buckets the steps of a run are cut; ``steps`` itself if every point can stay.

    A bucket keeps two points of a series, so a report of ``runs`` runs of ``series`` series stays near
    ``POINTS_PER_REPORT`` points.
    """
    share = POINTS_PER_REPORT // max(1, series * runs)
    points = max(_FEWEST_POINTS, min(POINTS_PER_SERIES, share))
    return steps if steps <= points else points // 2


def bucket_starts(steps: int, buckets: int) -> list[int]:
    """First step index of every bucket, and ``steps`` as the end of the last."""
    return [bucket * steps // buckets for bucket in range(buckets + 1)] if buckets else [0]


def thin(series: Series, steps: int, buckets: int) -> Series:
    """The minimum and the maximum of every bucket at their own steps, the first and the last value of the series, and
    the first NaN and infinity of every bucket."""
    if buckets >= steps:
        return series
    starts = bucket_starts(steps, buckets)
    kept: set[int] = {0, len(series.indices) - 1} if series.indices else set()
    for begin, end in _spans(series.indices, starts):
        kept.update(_extrema(series.values, begin, end))
    places = sorted(kept)
    return Series([series.indices[place] for place in places], [series.values[place] for place in places])


def _spans(indices: Sequence[int], starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end within ``indices`` of every bucket that holds any."""
    place = 0
    for end in starts[1:]:
        begin = place
        while place < len(indices) and indices[place] < end:
            place += 1
        if place > begin:
            yield begin, place


def _extrema(values: Sequence[float], begin: int, end: int) -> set[int]:
    finite = [place for place in range(begin, end) if math.isfinite(values[place])]
    kept = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
    if len(finite) < end - begin:
        oddities = {str(values[place]): place for place in reversed(range(begin, end))}
        kept.update(oddities[name] for name in ("nan", "inf", "-inf") if name in oddities)
    return kept
