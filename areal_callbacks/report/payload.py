"""The data of the page: JSON-safe values of all runs, small enough to be mailed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from areal_callbacks.findings import RULES, Finding, find
from areal_callbacks.report.encoding import (
    ABSENT,
    LOG_STEP,
    encode_counts,
    encode_peaks,
    encode_points,
    encode_series,
    encode_totals,
    pack,
    take_differences,
)
from areal_callbacks.report.history import History, Series
from areal_callbacks.report.snapshots import CAPACITY, Snapshot, choose
from areal_callbacks.report.thinning import count_buckets, thin
from areal_callbacks.writers.redact import as_json_number

LOADS_BUDGET = 1_400_000
"""Characters that the expert loads of a report may take."""
_FEW = 8
"""Snapshots that are encoded first."""
_MOST_CODES = 1 << 25
"""Counts that are encoded to find out how many snapshots fit."""


def make_payload(histories: Sequence[History]) -> dict[str, Any]:
    """Everything that the page draws.

    ::

        {"logStep": s, "absent": code, "runs": [{
            "name", "config", "started", "ended", "resumedAt",
            "exports": number of steps, "loadExports": those with expert loads, kept here or not,
            "buckets": how many groups of steps are told apart,
            "findings": as Finding.to_dict gives them, "rules": how many looked,
            "scalars": packed lines, the first one holds the steps, the second the seconds since the start,
            "stacks": [{"stack", "layers": [ids], "experts": [numbers]}],
            "snapshots": {"steps", "counts": [packed, per stack], "totals", "peaks": the same, exact, per layer}}]}
    """
    runs = [_describe_run(history, len(histories)) for history in histories]
    return {"logStep": LOG_STEP, "absent": ABSENT, "runs": runs}


def _describe_run(history: History, runs: int) -> dict[str, Any]:
    stacks = _list_stacks(history.snapshots)
    return {
        "name": history.name,
        "config": history.config,
        "started": _round_time(history.started),
        "ended": _round_time(history.ended),
        "resumedAt": history.resumed_at,
        "exports": len(history.steps),
        "loadExports": history.load_exports,
        "findings": [_describe_finding(finding) for finding in find(history)],
        "rules": len(RULES),
        **_encode_scalars(history, runs),
        "stacks": [
            {"stack": stack, "layers": [layer for layer, _ in layers], "experts": [experts for _, experts in layers]}
            for stack, layers in stacks.items()
        ],
        "snapshots": _encode_snapshots(history.snapshots, stacks, LOADS_BUDGET // runs),
    }


def _describe_finding(finding: Finding) -> dict[str, Any]:
    evidence = {name: as_json_number(value) for name, value in finding.evidence.items()}
    return {**finding.to_dict(), "evidence": evidence}


def _round_time(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None


def _encode_scalars(history: History, runs: int) -> dict[str, Any]:
    steps = len(history.steps)
    buckets = count_buckets(steps, len(history.series), runs)
    seconds = Series(history.clock.indices, [round(time, 1) for time in history.clock.values])
    lines = [",".join(map(str, take_differences(history.steps))), encode_points(thin(seconds, steps, buckets), steps)]
    lines += (encode_series(key, thin(history.series[key], steps, buckets), steps) for key in sorted(history.series))
    return {"buckets": buckets, "scalars": pack("\n".join(lines).encode("utf-8", "backslashreplace"))}


def _list_stacks(snapshots: Sequence[Snapshot]) -> dict[str, list[tuple[int, int]]]:
    """Stack → (layer id, number of experts) by id; the main decoder's name is empty, so it comes first."""
    experts: dict[tuple[str, int], int] = {}
    for snapshot in snapshots:
        for key, counts in snapshot.counts.items():
            experts[key] = max(len(counts), experts.get(key, 0))
    stacks: dict[str, list[tuple[int, int]]] = {}
    for stack, layer in sorted(experts):
        stacks.setdefault(stack, []).append((layer, experts[stack, layer]))
    return stacks


def _encode_snapshots(
    snapshots: Sequence[Snapshot], stacks: Mapping[str, Sequence[tuple[int, int]]], budget: int
) -> dict[str, Any]:
    chosen, counts = _choose_what_fits(snapshots, stacks, budget)
    return {
        "steps": [snapshot.step for snapshot in chosen],
        "counts": counts,
        "totals": [encode_totals(chosen, stack, layers) for stack, layers in stacks.items()],
        "peaks": [encode_peaks(chosen, stack, layers) for stack, layers in stacks.items()],
    }


def _choose_what_fits(
    snapshots: Sequence[Snapshot], stacks: Mapping[str, Sequence[tuple[int, int]]], budget: int
) -> tuple[Sequence[Snapshot], list[str]]:
    """About as many snapshots as fit, and the counts of each stack; a few are encoded first to see what one takes."""
    layout = sum(experts for layers in stacks.values() for _, experts in layers)
    most = max(2, min(CAPACITY, len(snapshots), _MOST_CODES // max(1, layout)))

    @functools.cache
    def encode(count: int) -> tuple[Sequence[Snapshot], list[str]]:
        chosen = choose(snapshots, count)
        return chosen, [encode_counts(chosen, stack, layers) for stack, layers in stacks.items()]

    def estimate(count: int) -> int:
        size = sum(map(len, encode(count)[1]))
        return max(2, min(most, int(0.97 * count * budget / max(1, size))))

    count = estimate(estimate(min(most, _FEW)))
    while count > 2 and sum(map(len, encode(count)[1])) > budget:
        count = min(count - 1, estimate(count))
    return encode(count)
