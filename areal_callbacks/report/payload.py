"""What the page knows: JSON-safe data of all runs, small enough to be mailed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from areal_callbacks.report.encoding import (
    ABSENT,
    LOG_STEP,
    differences,
    encode_counts,
    encode_totals,
    pack,
    series_line,
)
from areal_callbacks.report.history import History
from areal_callbacks.report.snapshots import CAPACITY, Snapshot, choose
from areal_callbacks.report.thinning import buckets_for, thin

LOADS_BUDGET = 1_400_000
"""Characters that the expert loads of a report may take."""


def payload(histories: Sequence[History]) -> dict[str, Any]:
    """Everything that the page draws.

    ::

        {"logStep": s, "absent": code, "runs": [{
            "name", "config", "started", "ended", "resumedAt",
            "exports": number of steps, "loadExports": those with expert loads, kept here or not,
            "buckets": how many groups of steps are told apart,
            "scalars": packed lines, the first one holds the steps,
            "stacks": [{"stack", "layers": [ids], "experts": [numbers]}],
            "snapshots": {"steps", "counts": [packed, per stack], "totals": [packed, per stack]}}]}
    """
    runs = [_run(history, len(histories)) for history in histories]
    return {"logStep": LOG_STEP, "absent": ABSENT, "runs": runs}


def _run(history: History, runs: int) -> dict[str, Any]:
    stacks = _stacks(history.snapshots)
    return {
        "name": history.name,
        "config": history.config,
        "started": _time(history.started),
        "ended": _time(history.ended),
        "resumedAt": history.resumed_at,
        "exports": len(history.steps),
        "loadExports": history.load_exports,
        **_scalars(history, runs),
        "stacks": [
            {"stack": stack, "layers": [layer for layer, _ in layers], "experts": [experts for _, experts in layers]}
            for stack, layers in stacks.items()
        ],
        "snapshots": _snapshots(history.snapshots, stacks, LOADS_BUDGET // runs),
    }


def _time(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None


def _scalars(history: History, runs: int) -> dict[str, Any]:
    steps = len(history.steps)
    buckets = buckets_for(steps, len(history.series), runs)
    lines = [",".join(map(str, differences(history.steps)))]
    lines += (series_line(key, thin(history.series[key], steps, buckets), steps) for key in sorted(history.series))
    return {"buckets": buckets, "scalars": pack("\n".join(lines).encode("utf-8", "backslashreplace"))}


def _stacks(snapshots: Sequence[Snapshot]) -> dict[str, list[tuple[int, int]]]:
    """Stack → (layer id, number of experts) by id; the main decoder's name is empty, so it comes first."""
    experts: dict[tuple[str, int], int] = {}
    for snapshot in snapshots:
        for key, counts in snapshot.counts.items():
            experts[key] = max(len(counts), experts.get(key, 0))
    stacks: dict[str, list[tuple[int, int]]] = {}
    for stack, layer in sorted(experts):
        stacks.setdefault(stack, []).append((layer, experts[stack, layer]))
    return stacks


def _snapshots(
    snapshots: Sequence[Snapshot], stacks: Mapping[str, Sequence[tuple[int, int]]], budget: int
) -> dict[str, Any]:
    count = CAPACITY
    while True:
        chosen = choose(snapshots, count)
        counts = [encode_counts(chosen, stack, layers) for stack, layers in stacks.items()]
        size = sum(map(len, counts))
        if size <= budget or len(chosen) <= 2:
            break
        count = max(2, int(0.97 * len(chosen) * budget / size))
    return {
        "steps": [snapshot.step for snapshot in chosen],
        "counts": counts,
        "totals": [encode_totals(chosen, stack, layers) for stack, layers in stacks.items()],
    }
