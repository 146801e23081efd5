"""What rules read of a run: what was exported, by key. The report's history is one, the last exports are another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class ExportedSeries(Protocol):
    """The values of one key: ``values[k]`` belongs to the run's ``steps[indices[k]]``; indices ascend."""

    @property
    def indices(self) -> Sequence[int]: ...

    @property
    def values(self) -> Sequence[float]: ...


class ExportedLoads(Protocol):
    """The routed assignments of one export: (stack, layer) → one count per expert."""

    @property
    def step(self) -> int: ...

    @property
    def counts(self) -> Mapping[tuple[str, int], Sequence[int]]: ...


class ExportedHistory(Protocol):
    """One run, free of repeated steps.

    Attributes:
        steps: every step at which anything was exported, ascending.
        series: key → its values, of the host's scalars too.
        snapshots: expert loads of some of the steps, ascending.
        resumed_at: the first step after each resumption.
    """

    @property
    def steps(self) -> Sequence[int]: ...

    @property
    def series(self) -> Mapping[str, ExportedSeries]: ...

    @property
    def snapshots(self) -> Sequence[ExportedLoads]: ...

    @property
    def resumed_at(self) -> Sequence[int]: ...


class Points(NamedTuple):
    """A series by step; empty if nothing was exported under the key."""

    steps: list[int]
    values: list[float]


def read_points(history: ExportedHistory, key: str) -> Points:
    """The finite values of a key."""
    series = history.series.get(key)
    if series is None:
        return Points([], [])
    kept = [(index, value) for index, value in zip(series.indices, series.values) if math.isfinite(value)]
    return Points([history.steps[index] for index, _ in kept], [value for _, value in kept])


def read_first(history: ExportedHistory, keys: Sequence[str]) -> tuple[str, Points]:
    """The first of ``keys`` with any finite value, and its points; the last key and nothing without one."""
    for key in keys:
        points = read_points(history, key)
        if points.steps:
            break
    return key, points


def divide(history: ExportedHistory, above: str, below: str) -> Points:
    """One key over another at the steps that have both, where the divisor is positive."""
    numerator, denominator = read_points(history, above), read_points(history, below)
    divisors = {step: value for step, value in zip(*denominator) if value > 0}
    kept = [(step, value / divisors[step]) for step, value in zip(*numerator) if step in divisors]
    return Points([step for step, _ in kept], [value for _, value in kept])
