"""Expert loads of a run of any length, and of any number of layers and experts, in bounded memory."""

from __future__ import annotations

import functools
import heapq
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from areal_callbacks.core.balance import max_over_ideal
from areal_callbacks.writers.packed_loads import PackedLoads

CAPACITY = 400
MOST_COUNTS = 1 << 24
"""Counts of all kept snapshots together."""
MOST_COUNTS_OF_A_STEP = 1 << 22


@dataclass
class Snapshot:
    """The counts of one export: (stack, layer) → one count per expert; ``size`` of them."""

    step: int
    counts: dict[tuple[str, int], array[int]] = field(default_factory=dict)
    size: int = 0

    @functools.cached_property
    def imbalance(self) -> float:
        """``max_over_ideal`` of the worst layer."""
        return max((max_over_ideal(counts) for counts in self.counts.values()), default=-math.inf)


@dataclass
class _Unread:
    """A snapshot whose counts are not unpacked: few of a long run's are shown."""

    step: int
    parts: list[PackedLoads] = field(default_factory=list)
    size: int = 0

    def read(self) -> Snapshot:
        rows = ((part.stack, zip(part.layers, part.rows())) for part in self.parts)
        counts = {(stack, layer): row for stack, layers in rows for layer, row in layers}
        return Snapshot(self.step, counts, self.size)


class SnapshotPool:
    """Keeps evenly spaced snapshots, with the last one and the most imbalanced one.

    Once there are twice ``capacity``, or too many counts, every other one goes and new ones are taken half as often.

    Args:
        capacity: how many are kept at least, if there are as many and they are small.
        most_counts: of all kept snapshots together.
    """

    def __init__(self, capacity: int = CAPACITY, most_counts: int = MOST_COUNTS) -> None:
        self._capacity = capacity
        self._most_counts = most_counts
        self._kept: dict[int, _Unread] = {}
        self._stride = 1
        self._size = 0
        self._steps: set[int] = set()
        self._latest_steps: list[int] = []  # the same steps as a heap of their negatives
        self._last: _Unread | None = None
        self._worst: tuple[float, _Unread] | None = None

    @property
    def exports(self) -> int:
        """How many steps had loads, kept or not."""
        return len(self._steps)

    def add(self, record: PackedLoads, peak: float) -> None:
        """Add one record; those of a step follow each other.

        Args:
            record: the counts of some layers at a step.
            peak: ``max_over_ideal_max`` of the step, NaN where unknown.

        Raises:
            ValueError: the step has more than some four million counts.
        """
        snapshot = self._last
        if snapshot is None or snapshot.step != record.step:
            snapshot = self._begin(record.step)
        added = len(record.layers) * record.experts
        snapshot.size += added
        if snapshot.size > MOST_COUNTS_OF_A_STEP:
            raise ValueError(f"step {record.step} has more than {MOST_COUNTS_OF_A_STEP:,} expert counts")
        snapshot.parts.append(record)
        if record.step in self._kept:
            self._size += added
            self._thin()
        if peak == peak and (self._worst is None or peak > self._worst[0]):
            self._worst = (peak, snapshot)

    def drop_from(self, step: int) -> None:
        """Forget ``step`` and what comes after it."""
        while self._latest_steps and -self._latest_steps[0] >= step:
            dropped = -heapq.heappop(self._latest_steps)
            self._steps.discard(dropped)
            self._forget(dropped)
        if self._last is not None and self._last.step >= step:
            self._last = self._kept[max(self._kept)] if self._kept else None
        if self._worst is not None and self._worst[1].step >= step:
            self._worst = None

    def snapshots(self) -> list[Snapshot]:
        """What is kept, by step.

        Raises:
            ValueError: counts are corrupt; names the file and the line.
        """
        extra = [snapshot for snapshot in (self._worst and self._worst[1], self._last) if snapshot is not None]
        by_step = {**{snapshot.step: snapshot for snapshot in extra}, **self._kept}
        return [by_step[step].read() for step in sorted(by_step)]

    def _begin(self, step: int) -> _Unread:
        snapshot = _Unread(step)
        if len(self._steps) % self._stride == 0 or step in self._kept:
            self._forget(step)
            self._kept[step] = snapshot
        if step not in self._steps:
            self._steps.add(step)
            heapq.heappush(self._latest_steps, -step)
        self._last = snapshot
        self._thin()
        return snapshot

    def _thin(self) -> None:
        while len(self._kept) >= 2 * self._capacity or (self._size > self._most_counts and len(self._kept) > 2):
            for step in sorted(self._kept)[1::2]:
                self._forget(step)
            self._stride *= 2

    def _forget(self, step: int) -> None:
        snapshot = self._kept.pop(step, None)
        self._size -= snapshot.size if snapshot is not None else 0


def choose(snapshots: Sequence[Snapshot], count: int) -> list[Snapshot]:
    """At most ``count`` (two or more) of them, evenly spaced, always with the first, the last and the worst."""
    if len(snapshots) <= count:
        return list(snapshots)
    stride = (len(snapshots) - 1) / (count - 1)
    chosen = {round(stride * number) for number in range(count)}
    worst = max(range(len(snapshots)), key=lambda index: snapshots[index].imbalance)
    inner = chosen - {0, len(snapshots) - 1}
    if worst not in chosen and inner:
        chosen.remove(min(inner, key=lambda index: abs(index - worst)))
        chosen.add(worst)
    return [snapshots[index] for index in sorted(chosen)]
