"""What recording costs: seconds of one call, and bytes of tensor that a tracker retains.

    python benchmarks/bench_tracker.py

Times are minima and medians over rounds; the loop around the call is taken off. A bare ``dict`` update of sum and count
is the yardstick for ``scalar``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from tabulate import tabulate

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

ROUNDS, CALLS = 40, 5000


def seconds_of(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds per call and round; the rounds of all calls are interleaved, so that a busy machine hits them alike."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            rounds[name].append((time.perf_counter() - start) / repeats)
    return rounds


def scalar_calls() -> dict[str, Callable[[], object]]:
    tracker, scoped = StatsTracker(), StatsTracker("rollout")
    totals = {"reward": [0.0, 0.0]}

    def yardstick() -> None:
        total = totals["reward"]
        total[0] += 0.5
        total[1] += 1.0

    scope = scoped.scope("train")
    scope.__enter__()
    return {
        "empty call": lambda: None,
        "sum and count in a dict": yardstick,
        "scalar(reward=0.5)": lambda: tracker.scalar(reward=0.5),
        "scalar(reward=0.5), named tracker in a scope": lambda: scoped.scalar(reward=0.5),
        "scalar of three values": lambda: tracker.scalar(a=0.5, b=0.5, c=0.5),
        "record_timing of nothing": lambda: timed(tracker),
    }


def timed(tracker: StatsTracker) -> None:
    with tracker.record_timing("step"):
        pass


def stat_calls() -> dict[str, Callable[[], object]]:
    tracker = StatsTracker()
    values, mask = torch.rand(8, 4096), torch.rand(8, 4096) < 0.7
    thirteen = {f"metric_{index}": torch.rand(8, 4096) for index in range(13)}
    tracker.denominator(valid=mask)
    return {
        "denominator, 32,768 tokens": lambda: tracker.denominator(valid=mask),
        "stat AVG_MIN_MAX, 32,768 tokens": lambda: tracker.stat("valid", loss=values),
        "stat SUM, 32,768 tokens": lambda: tracker.stat("valid", ReduceType.SUM, total=values),
        "stat of 13 such tensors": lambda: tracker.stat("valid", **thirteen),
        "the same, one by one": lambda: [tracker.stat("valid", **{name: each}) for name, each in thirteen.items()],
        "sum, amin and amax of each of the 13, bare": lambda: [
            (each.sum(dtype=torch.float64), each.amin(), each.amax()) for each in thirteen.values()
        ],
        "values[mask] and four torch reductions": lambda: [
            getattr(values[mask].double(), name)() for name in ("sum", "numel", "amin", "amax")
        ],
    }


def print_times(title: str, calls: dict[str, Callable[[], object]], repeats: int) -> None:
    rounds = seconds_of(calls, repeats)
    rows = [(name, min(times) * 1e6, statistics.median(times) * 1e6) for name, times in rounds.items()]
    print(tabulate(rows, (title, "minimum µs", "median µs"), floatfmt=".2f"), end="\n\n")


def print_memory() -> None:
    rows = []
    for metrics, tokens, batches in ((10, 1000, 1), (10, 100_000, 50), (65, 1000, 10), (500, 1000, 10)):
        tracker, mask = StatsTracker(), torch.ones(tokens, dtype=torch.bool)
        for _ in range(batches):
            tracker.stat_compact(mask, **{f"m{index}": torch.rand(tokens) for index in range(metrics)})
        blocks = tracker._accumulator._blocks.values()
        rows.append((metrics, tokens, batches, sum(block._rows.nbytes for block in blocks) / metrics))
    print(tabulate(rows, ("metrics", "tokens", "batches", "tensor bytes per metric"), floatfmt=".1f"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_times("scalar", scalar_calls(), CALLS)
    print_times("stat", stat_calls(), 20)
    print_memory()
