"""Trackers and monitors, reduced together: what every rank brings becomes the same record on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import reduce
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology

Interval: TypeAlias = dict[str, Records]
"""Family → reduced records of the time since the last export; the same on every rank."""


@dataclass(frozen=True)
class Source:
    """Something that brings records to an export.

    Attributes:
        family: its name; a family that fails on one rank is left out on all.
        collect: this rank's records since the last call; None where it has failed before and said so; may raise.
        contributes: False where this rank repeats another's records.
    """

    family: str
    collect: Callable[[], Records | None]
    contributes: bool = True


def reduce_sources(sources: list[Source], topology: Topology) -> Interval:
    """Collect and reduce: one MAX and one SUM over the world, called by every rank."""
    return reduce({source.family: _collected(source) for source in sources}, topology.world, channel="session")


def merge_intervals(earlier: Interval | None, later: Interval) -> Interval:
    """Two reduced intervals as one; a family that only one of them has stays."""
    if earlier is None:
        return later
    merged = dict(earlier)
    for family, records in later.items():
        merged[family] = merged[family].merge(records) if family in merged else records
    return merged


def join_metrics(measured: Mapping[str, float], recorded: Mapping[str, float]) -> dict[str, float]:
    """The monitors' metrics and those that user code recorded; a name that both have is the monitors'."""
    for name in measured.keys() & recorded.keys():
        report_once(f"name:{name}", f"{name!r} is measured here: the value recorded under that name is left out")
    return {**recorded, **measured}


def _collected(source: Source) -> Records | None:
    try:
        records = source.collect()
    except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the reduction
        report_once(f"collect:{source.family}", f"{source.family} could not be exported: {error!r}")
        return None
    return records if source.contributes or records is None else Records()
