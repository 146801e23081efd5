"""The exports of a run that goes on, in bounded memory: the last ones whole, evenly spaced ones of the time before."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MOST_EXPORTS = 1024
MOST_KEYS = 2000
MOST_LOADS = 5


@dataclass
class RecentSeries:
    """The values of one key, by the places of their exports."""

    indices: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class RecentLoads:
    """The routed assignments of one export."""

    step: int
    counts: Mapping[tuple[str, int], Sequence[int]]


class RecentHistory:
    """What the rules read, fed export by export.

    Once there are ``most_exports``, half of what is older than the last half goes, evenly. Of several exports at one
    step the last one counts; a step that lies before the last one begins the history anew there.

    Attributes:
        steps: of the kept exports.
        series: key → its values.
        snapshots: the last five expert loads.
        resumed_at: empty, a start has a history of its own.
    """

    def __init__(self, most_exports: int = MOST_EXPORTS) -> None:
        self._most_exports = most_exports
        self._numbers: list[int] = []  # of the kept exports, counted from the first one
        self._count = 0
        self._stride = 1
        self.steps: list[int] = []
        self.series: dict[str, RecentSeries] = {}
        self.snapshots: list[RecentLoads] = []
        self.resumed_at: tuple[int, ...] = ()

    def add(self, step: int, values: Mapping[str, float], loads: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """One export: its scalars, and the counts of its layers if there are any."""
        self._forget_from(step)
        self.steps.append(step)
        self._numbers.append(self._count)
        self._count += 1
        for key, value in values.items():
            series = self.series.get(key)
            if series is None:
                if len(self.series) >= MOST_KEYS:
                    continue
                series = self.series[key] = RecentSeries()
            series.indices.append(len(self.steps) - 1)
            series.values.append(value)
        if loads:
            self.snapshots = [*self.snapshots[-MOST_LOADS + 1 :], RecentLoads(step, loads)]
        if len(self.steps) > self._most_exports:
            self._thin()

    def _thin(self) -> None:
        half = len(self.steps) // 2
        older = [place for place in range(half) if self._numbers[place] % self._stride == 0]
        while len(older) > half // 2:
            self._stride *= 2
            older = [place for place in older if self._numbers[place] % self._stride == 0]
        self._keep([*older, *range(half, len(self.steps))])

    def _forget_from(self, step: int) -> None:
        if self.steps and step <= self.steps[-1]:
            self._keep(range(bisect.bisect_left(self.steps, step)))
            self.snapshots = [one for one in self.snapshots if one.step < step]

    def _keep(self, kept: Sequence[int]) -> None:
        """Forget the exports at other places."""
        places = {old: new for new, old in enumerate(kept)}
        self.steps = [self.steps[place] for place in kept]
        self._numbers = [self._numbers[place] for place in kept]
        for key, series in list(self.series.items()):
            points = [(places[at], value) for at, value in zip(series.indices, series.values) if at in places]
            if points:
                indices, values = zip(*points)
                self.series[key] = RecentSeries(array("q", indices), array("d", values))
            else:
                del self.series[key]
