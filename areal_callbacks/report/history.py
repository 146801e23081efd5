"""One run, read from its metrics.jsonl: every scalar over the steps, and a bounded number of expert-load snapshots."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_callbacks.core.balance import max_over_ideal
from areal_callbacks.core.names import MAX_OVER_IDEAL_MAX, name_max_over_ideal
from areal_callbacks.report.snapshots import Snapshot, SnapshotPool
from areal_callbacks.writers.metrics_file import MetricsRecord, PackedRecord, RunRecord, read_packed
from areal_callbacks.writers.packed_loads import PackedLoads
from areal_callbacks.writers.trainings import number_trainings


@dataclass
class Series:
    """The values of one key: ``values[k]`` belongs to the run's ``steps[indices[k]]``; indices ascend."""

    indices: list[int]
    values: list[float]


@dataclass
class History:
    """One run, free of repeated steps.

    Attributes:
        name: for people.
        config: as the writer redacted it; of the last start.
        steps: every step at which anything was exported, ascending.
        series: key → its values.
        clock: when the steps were exported, in seconds since ``started``, or since the first of them without it.
        snapshots: the kept expert loads.
        load_exports: at how many steps there were expert loads, kept or not.
        started: seconds since the epoch of the first ``run`` line, NaN without one.
        ended: seconds since the epoch of the last export, NaN without one.
        resumed_at: first steps of the later ``run`` lines.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    clock: Series = field(default_factory=lambda: Series([], []))
    snapshots: list[Snapshot] = field(default_factory=list)
    load_exports: int = 0
    started: float = math.nan
    ended: float = math.nan
    resumed_at: list[int] = field(default_factory=list)


def read_history(path: str | Path, name: str) -> History:
    """The run in a metrics.jsonl; of several trainings the last.

    A resumed run repeats the steps since its checkpoint: from its first step on, what an earlier start wrote is left
    out. Of a step that one start wrote twice, the later value of each key counts.

    Raises:
        ValueError: there are more than 200,000 keys, or a line is corrupt; see
            :func:`~areal_callbacks.writers.metrics_file.read_metrics`.
    """
    reader, current = HistoryReader(), 0
    for training, record in number_trainings(read_packed(path)):
        if training != current:
            reader, current = HistoryReader(), training
        reader.add(record)
    return reader.history(name)


def read_trainings(path: str | Path, name: str) -> list[History]:
    """Every training in a metrics.jsonl, read like the last one by :func:`read_history`; numbered from 1."""
    readers: dict[int, HistoryReader] = {}
    for training, record in number_trainings(read_packed(path)):
        readers.setdefault(training, HistoryReader()).add(record)
    if len(readers) == 1:
        return [readers[0].history(name)]
    return [reader.history(f"{name} ({number})") for number, reader in enumerate(readers.values(), 1)]


MOST_SERIES = 200_000


class _Column:
    """What was written under one key: the step, which start of the run wrote it, and the value."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.starts = array("I")
        self.values = array("d")

    def append(self, step: int, start: int, value: float) -> None:
        self.steps.append(step)
        self.starts.append(start)
        self.values.append(value)

    def find_valid(self, ends: Sequence[float]) -> dict[int, float]:
        """Step → value, the later one of a step; ``ends[start]`` is where the starts after it began again."""
        points = zip(self.steps, self.starts, self.values)
        return {step: value for step, start, value in points if step < ends[start]}


class HistoryReader:
    """Puts the records of one training together, as many as there are by now.

    Columns instead of a dictionary a step: a long run stays small. What a resumption repeats is sorted out at the
    end, so that many of them cost no more than their lines."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._times = _Column()
        self._pool = SnapshotPool()
        self._config: dict[str, Any] = {}
        self._started, self._ended = math.nan, math.nan
        self._starts = 0
        self._first_steps: list[float] = []  # of each start
        self._lowest = math.inf
        self._fresh_start = False
        self._resumed_at: list[int] = []
        self._step: int | None = None
        self._present: set[str] = set()
        self._peak = math.nan

    def add(self, record: PackedRecord) -> None:
        if isinstance(record, RunRecord):
            self._add_run(record)
        elif isinstance(record, MetricsRecord):
            self._add_metrics(record)
        else:
            self._add_loads(record)

    def history(self, name: str) -> History:
        """What was added so far, sorted; more may be added later."""
        ends = self._find_ends()
        valid = {key: points for key, column in self._columns.items() if (points := column.find_valid(ends))}
        steps = sorted({step for points in valid.values() for step in points})
        index = {step: number for number, step in enumerate(steps)}
        return History(
            name=name,
            config=self._config,
            steps=steps,
            series={key: _make_series(points, index) for key, points in valid.items()},
            clock=self._make_clock(ends, index),
            snapshots=self._pool.snapshots(),
            load_exports=self._pool.exports,
            started=self._started,
            ended=self._ended,
            resumed_at=[step for step in self._resumed_at if step in index],
        )

    def _make_clock(self, ends: Sequence[float], index: dict[int, int]) -> Series:
        times = {step: time for step, time in self._times.find_valid(ends).items() if step in index}
        clock = _make_series(times, index)
        start = (
            min([self._started, *clock.values[:1]]) if math.isfinite(self._started) else next(iter(clock.values), 0.0)
        )
        return Series(clock.indices, [time - start for time in clock.values])

    def _add_run(self, record: RunRecord) -> None:
        self._config = record.config
        self._started = record.time if self._starts == 0 else self._started
        self._starts += 1
        self._first_steps.append(math.inf)
        self._fresh_start = True

    def _enter(self, step: int) -> None:
        if self._fresh_start and self._starts > 1:
            self._drop_from(step)
        self._fresh_start = False
        self._lowest = min(self._lowest, step)
        if step != self._step:
            self._step, self._present, self._peak = step, set(), math.nan

    def _drop_from(self, step: int) -> None:
        self._first_steps[-1] = step
        self._pool.drop_from(step)
        while self._resumed_at and self._resumed_at[-1] >= step:
            self._resumed_at.pop()
        if self._lowest < step:
            self._resumed_at.append(step)
        else:
            self._lowest = math.inf

    def _find_ends(self) -> list[float]:
        """For each start, and for what came before the first, the lowest first step of the starts after it."""
        ends = [math.inf]
        for first in reversed(self._first_steps):
            ends.append(min(first, ends[-1]))
        return ends[::-1]

    def _add_metrics(self, record: MetricsRecord) -> None:
        self._enter(record.step)
        self._ended = record.time
        self._times.append(record.step, self._starts, record.time)
        for key, value in record.metrics.items():
            self._append(record.step, key, value)
        self._peak = record.metrics.get(MAX_OVER_IDEAL_MAX, self._peak)

    def _add_loads(self, record: PackedLoads) -> None:
        self._enter(record.step)
        self._pool.add(record, self._peak)
        keys = [name_max_over_ideal(record.stack, layer) for layer in record.layers]
        if self._present.issuperset(keys):
            return
        for key, counts in zip(keys, record.rows()):
            if key not in self._present:
                self._append(record.step, key, max_over_ideal(counts))

    def _append(self, step: int, key: str, value: float) -> None:
        column = self._columns.get(key)
        if column is None:
            if len(self._columns) >= MOST_SERIES:
                raise ValueError(f"step {step}: more than {MOST_SERIES:,} keys")
            column = self._columns[key] = _Column()
        column.append(step, self._starts, value)
        self._present.add(key)


def _make_series(points: dict[int, float], index: dict[int, int]) -> Series:
    steps = sorted(points)
    return Series([index[step] for step in steps], [points[step] for step in steps])
