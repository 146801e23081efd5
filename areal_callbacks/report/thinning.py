"""Fewer points for long series, without losing an extremum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from areal_callbacks.report.history import Series

POINTS_PER_SERIES = 2_000
POINTS_PER_REPORT = 250_000
_FEWEST_POINTS = 200


def count_buckets(steps: int, series: int, runs: int = 1) -> int:
    """Into how many buckets the steps of a run are cut; ``steps`` itself if every point can stay.

    A bucket keeps two points of a series, so a report of ``runs`` runs of ``series`` series stays near
    ``POINTS_PER_REPORT`` points.
    """
    share = POINTS_PER_REPORT // max(1, series * runs)
    points = max(_FEWEST_POINTS, min(POINTS_PER_SERIES, share))
    return steps if steps <= points else points // 2


def split_steps(steps: int, buckets: int) -> list[int]:
    """First step index of every bucket, and ``steps`` as the end of the last."""
    return [bucket * steps // buckets for bucket in range(buckets + 1)] if buckets else [0]


def thin(series: Series, steps: int, buckets: int) -> Series:
    """The minimum and the maximum of every bucket at their own steps, the first and the last value of the series, and
    the first NaN and infinity of every bucket."""
    if buckets >= steps:
        return series
    starts = split_steps(steps, buckets)
    kept: set[int] = {0, len(series.indices) - 1} if series.indices else set()
    for begin, end in _split(series.indices, starts):
        kept.update(_find_extrema(series.values, begin, end))
    points = sorted(kept)
    return Series([series.indices[point] for point in points], [series.values[point] for point in points])


def _split(indices: Sequence[int], starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end within ``indices`` of every bucket that holds any."""
    point = 0
    for end in starts[1:]:
        begin = point
        while point < len(indices) and indices[point] < end:
            point += 1
        if point > begin:
            yield begin, point


def _find_extrema(values: Sequence[float], begin: int, end: int) -> set[int]:
    finite = [point for point in range(begin, end) if math.isfinite(values[point])]
    kept = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
    if len(finite) < end - begin:
        first = {str(values[point]): point for point in reversed(range(begin, end))}
        kept.update(first[word] for word in ("nan", "inf", "-inf") if word in first)
    return kept
