"""From what every rank recorded and measured to one :class:`Export`: reduce, keep, derive."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from areal_callbacks.core.grouped import only_own, pool_own
from areal_callbacks.core.grouped_export import STATS, reduce_grouped
from areal_callbacks.core.records import Records
from areal_callbacks.core.types import COUNT_SUFFIX, Export
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session.observation import Families, Observation, collect_records
from areal_callbacks.topology import Topology

Reduced: TypeAlias = dict[str, Records]
"""Family → records reduced over the ranks; the same on every rank."""


class Exporter:
    """Reduces a run's families together, and keeps what was reduced until it is taken.

    Args:
        observation: this rank's monitors.
    """

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._pending: Reduced | None = None

    @property
    def has_pending(self) -> bool:
        """Something was reduced and not taken yet; equal on all ranks."""
        return self._pending is not None

    def reduce(self, recorded: Callable[[], Records], topology: Topology, *, measured: bool) -> None:
        """Reduce the time since the last call: one MAX and one SUM over the world, called by every rank.

        Keys that were recorded with a group of their own are reduced over that, also where this rank's others do not
        count.

        Args:
            recorded: this rank's records of the trackers since the last call.
            topology: who contributes what.
            measured: False leaves the monitors alone.
        """
        families = _collect_stats(recorded, topology)
        if measured:
            families |= self._observation.collect()
        interval = reduce_grouped(families, topology.world, channel="session")
        self._observation.accumulate(interval)
        if measured and self._pending is not None:  # a family that fails later would pass a part off as the whole
            self._pending = {name: part for name, part in self._pending.items() if name in interval or name == STATS}
        if any(part.keys or part.sums or part.maxima for part in interval.values()):
            self._pending = interval if self._pending is None else merge(self._pending, interval)

    def take(self, step: int, host: Mapping[str, float]) -> Export | None:
        """Derive what was reduced since the last call; None if nothing was. Local."""
        if self._pending is None:
            return None
        reduced, self._pending = self._pending, None
        measured, loads = self._observation.derive(reduced)
        recorded = reduced[STATS].metrics() if STATS in reduced else {}
        recorded = {name: value for name, value in recorded.items() if not name.endswith(COUNT_SUFFIX)}
        return Export(step, join_metrics(measured, recorded), loads, host, time.time())


def _collect_stats(recorded: Callable[[], Records], topology: Topology) -> Families:
    stats = collect_records(STATS, recorded)
    if stats is not None and not topology.stats:
        stats = only_own(stats)
    return {STATS: pool_own(stats) if stats is not None and topology.is_left_alone else stats}


def merge(earlier: Reduced, later: Reduced) -> Reduced:
    """Two reduced intervals as one; a family that only one of them has stays."""
    merged = dict(earlier)
    for family, records in later.items():
        merged[family] = merged[family].merge(records) if family in merged else records
    return merged


def join_metrics(measured: Mapping[str, float], recorded: Mapping[str, float]) -> dict[str, float]:
    """The monitors' metrics and those that user code recorded; a name that both have is the monitors'."""
    for name in measured.keys() & recorded.keys():
        report_once(f"name:{name}", f"{name!r} is measured here: the value recorded under that name is left out")
    return {**recorded, **measured}
