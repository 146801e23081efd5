"""What every rank brings is reduced together; what fails on one rank is missing on all; intervals add up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.distributed import Ranks

from areal_callbacks import MetricsSession
from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.session.exporter import join_metrics, merge
from areal_callbacks.session.observation import collect_records
from areal_callbacks.topology import Topology


def vectors(**sums: list[float]) -> Records:
    return Records(sums={name: torch.tensor(values, dtype=torch.float64) for name, values in sums.items()})


def recorded(**values: float) -> Records:
    tracker = StatsTracker()
    tracker.scalar(**values)
    return tracker.collect()


def reduce_twice(group: Any) -> tuple[dict[str, Any], bool]:
    rank = dist.get_rank(group)

    def fail() -> Records:
        raise OSError("lost")

    merged: dict[str, Records] = {}
    for _ in range(2):
        families = {
            "stats": collect_records("stats", lambda: recorded(x=float(rank))),
            "moe": collect_records("moe", fail if rank == 0 else lambda: vectors(v=[1.0])),
            "time": collect_records("time", lambda: vectors(tokens=[2.0 + rank])),
        }
        merged = merge(merged, reduce(families, group, channel="session"))
    merged = merge(merged, {"new": vectors(y=[3.0])})
    sums = {name: {key: value.tolist() for key, value in part.sums.items()} for name, part in merged.items()}
    return sums | {"metrics": merged["stats"].metrics()}, "moe" in merged


@pytest.mark.slow
def test_families_that_fail_on_one_rank_are_missing_on_all_and_intervals_add(two_ranks: Ranks) -> None:
    for sums, has_moe in two_ranks.run(reduce_twice):
        assert sums["time"] == {"tokens": [10.0]}
        assert sums["new"] == {"y": [3.0]}
        assert sums["metrics"] == {"x": 0.5, "x__count": 4.0}
        assert not has_moe


def export_without_contributing(group: Any) -> dict[str, float]:
    session = MetricsSession(report=False)
    session.topology = Topology(world=group, stats=dist.get_rank(group) == 1)
    session.tracker.scalar(x=float(dist.get_rank(group)) + 1)
    session.reduce()
    metrics = session.emit(1)
    session.close()
    assert metrics is not None
    return metrics.metrics


@pytest.mark.slow
def test_a_rank_that_repeats_another_contributes_nothing(two_ranks: Ranks, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert two_ranks.run(export_without_contributing) == [{"x": 2.0}, {"x": 2.0}]


def test_a_measured_name_wins_over_a_recorded_one(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert join_metrics({"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 4.0}) == {"a": 1.0, "b": 2.0, "c": 4.0}
    assert len(caplog.messages) == 1
