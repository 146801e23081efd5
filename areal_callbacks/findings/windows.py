"""Decisions over time that noise does not sway: medians of a few exports, and conditions that must last."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

SMOOTH = 5
"""Exports in a median: two outliers among them do not move it."""
LAST = 3
"""Exports in a row at which a smoothed condition must hold."""
WARM_UP = 3
"""Exports at the beginning of every start that say nothing about speed: compilation, caches, allocation, the first
batches."""
EXPORTS_TO_FIND = 8
"""A value that changes for good is found within so many exports: ``SMOOTH`` // 2 until the median follows, ``LAST`` - 1
until that has lasted, and as many again for noise at the threshold."""


class Episode(NamedTuple):
    """Positions in a series: where a condition first held, where it had lasted, and where it last held."""

    first: int
    found: int
    last: int


def find_episode(flags: Sequence[bool], exports: int = LAST) -> Episode | None:
    """The time in which a condition held, from its first to its last stretch of at least ``exports`` in a row."""
    first = found = last = -1
    length = 0
    for position, flag in enumerate(flags):
        length = length + 1 if flag else 0
        if length >= exports:
            if found < 0:
                first, found = position - length + 1, position
            last = position
    return Episode(first, found, last) if found >= 0 else None


def smooth(values: Sequence[float], width: int = SMOOTH) -> list[float]:
    """The median of each value and the ``width - 1`` before it; of fewer at the beginning."""
    return [statistics.median(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]


class Past(NamedTuple):
    """What a series was like before some position: its median, and how far its values lie from that.

    Attributes:
        median: of the values.
        spread: their standard deviation as their quartiles tell it: a normal distribution's are 1.349 of them apart.
    """

    median: float
    spread: float


class Judged(NamedTuple):
    """A position compared with the past before it: None and False while that is too short."""

    past: Past | None
    is_off: bool


def compare_with_past(
    values: Sequence[float], is_off: Callable[[int, Past], bool], *, least: int = 10, gap: int = SMOOTH
) -> list[Judged]:
    """Compare every position with the values before it, without those that were off themselves.

    Args:
        values: without those of the warm-up.
        is_off: told a position and its past, says whether it is off.
        least: values that make a past.
        gap: the last values are not past yet, so that a slow change is not compared with itself.
    """
    ordered: list[float] = []
    judged: list[Judged] = []
    for position in range(len(values)):
        if position >= gap and not judged[position - gap].is_off:
            bisect.insort(ordered, values[position - gap])
        past = _measure(ordered) if len(ordered) >= least else None
        judged.append(Judged(past, past is not None and is_off(position, past)))
    return judged


def _measure(ordered: Sequence[float]) -> Past:
    count = len(ordered)
    return Past(ordered[count // 2], (ordered[3 * count // 4] - ordered[count // 4]) / 1.349)


def skip_warm_up(steps: Sequence[int], starts: Sequence[int], exports: int = WARM_UP) -> list[bool]:
    """For each of ``steps`` whether it is among the first ``exports`` of the series, or of those from a start on.

    Args:
        steps: of the series, ascending.
        starts: the first steps after resumptions, ascending.
    """
    firsts = {0, *(bisect.bisect_left(steps, start) for start in starts)}
    skipped = {first + offset for first in firsts for offset in range(exports)}
    return [position in skipped for position in range(len(steps))]


def follow_best(values: Sequence[float], width: int = 20) -> list[float | None]:
    """The lowest median of ``width`` values in a row before each position, None before there are so many.

    A value that grows slowly is compared with what it was, not with what it has become meanwhile.
    """
    best: list[float | None] = []
    lowest: float | None = None
    for position in range(len(values)):
        best.append(lowest)
        if position + 1 >= width:
            median = statistics.median(values[position + 1 - width : position + 1])
            lowest = median if lowest is None else min(lowest, median)
    return best
