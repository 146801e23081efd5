"""Expert loads of a run of any length in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from areal_callbacks.core.balance import max_over_ideal
from areal_callbacks.writers.jsonl import ExpertLoadsRecord

CAPACITY = 400


@dataclass
class Snapshot:
    """The counts of one export: (stack, layer) → one count per expert."""

    step: int
    counts: dict[tuple[str, int], array[int]] = field(default_factory=dict)


class SnapshotPool:
    """Keeps evenly spaced snapshots, with the last one and the most imbalanced one.

    Once there are twice ``capacity``, every other one goes and new ones are taken half as often.

    Args:
        capacity: how many are kept at least, if there are as many.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._kept: dict[int, Snapshot] = {}
        self._stride = 1
        self._steps: set[int] = set()
        self._last: Snapshot | None = None
        self._worst: tuple[float, Snapshot] | None = None

    @property
    def exports(self) -> int:
        """How many steps had loads, kept or not."""
        return len(self._steps)

    def add(self, record: ExpertLoadsRecord, peak: float) -> None:
        """Add one record; those of a step follow each other.

        Args:
            record: the counts of some layers at a step.
            peak: ``max_over_ideal_max`` of the step, NaN where unknown.
        """
        snapshot = self._last
        if snapshot is None or snapshot.step != record.step:
            snapshot = self._begin(record.step)
        for layer, counts in zip(record.layers, record.counts):
            snapshot.counts[record.stack, layer] = array("Q" if max(counts, default=0) >> 32 else "I", counts)
        if peak == peak and (self._worst is None or peak > self._worst[0]):
            self._worst = (peak, snapshot)

    def drop_from(self, step: int) -> None:
        """Forget ``step`` and what comes after it."""
        self._steps = {at for at in self._steps if at < step}
        self._kept = {at: snapshot for at, snapshot in self._kept.items() if at < step}
        if self._last is not None and self._last.step >= step:
            self._last = self._kept[max(self._kept)] if self._kept else None
        if self._worst is not None and self._worst[1].step >= step:
            self._worst = None

    def snapshots(self) -> list[Snapshot]:
        """What is kept, by step."""
        extra = [snapshot for snapshot in (self._worst and self._worst[1], self._last) if snapshot is not None]
        by_step = {**{snapshot.step: snapshot for snapshot in extra}, **self._kept}
        return [by_step[step] for step in sorted(by_step)]

    def _begin(self, step: int) -> Snapshot:
        snapshot = Snapshot(step)
        if len(self._steps) % self._stride == 0 or step in self._kept:
            self._kept[step] = snapshot
        self._steps.add(step)
        self._last = snapshot
        if len(self._kept) >= 2 * self._capacity:
            self._kept = {at: self._kept[at] for at in sorted(self._kept)[::2]}
            self._stride *= 2
        return snapshot


def choose(snapshots: Sequence[Snapshot], count: int) -> list[Snapshot]:
    """At most ``count`` (two or more) of them, evenly spaced, always with the first, the last and the worst."""
    if len(snapshots) <= count:
        return list(snapshots)
    stride = (len(snapshots) - 1) / (count - 1)
    chosen = {round(stride * number) for number in range(count)}
    worst = max(range(len(snapshots)), key=lambda index: _measure_imbalance(snapshots[index]))
    inner = chosen - {0, len(snapshots) - 1}
    if worst not in chosen and inner:
        chosen.remove(min(inner, key=lambda index: abs(index - worst)))
        chosen.add(worst)
    return [snapshots[index] for index in sorted(chosen)]


def _measure_imbalance(snapshot: Snapshot) -> float:
    return max((max_over_ideal(counts) for counts in snapshot.counts.values()), default=-math.inf)
