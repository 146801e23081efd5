"""What an export costs over two gloo processes, against two bare ``all_reduce`` calls of the same sizes.

    python benchmarks/bench_export.py

The export takes what was recorded, packs it, reduces MAX and SUM, unpacks and names every metric. Rounds of both are
interleaved behind a barrier and the minimum is compared: the latency of gloo on a busy machine has several modes.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tabulate import tabulate

from areal_callbacks.core.reduce import _CHANNELS
from areal_callbacks.core.tracker import StatsTracker

METRICS, ROUNDS = (100, 500), 300


def timed(call: Callable[[], object]) -> float:
    """Seconds that the slower rank took."""
    dist.barrier()
    start = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def measure(metrics: int) -> tuple[int, int, list[float], list[float], list[float]]:
    """Buffer sizes in bytes, and the rounds of bare collectives, of an export over ranks, and of one without."""
    tracker, mask, world = StatsTracker(f"bench{metrics}"), torch.ones(64, dtype=torch.bool), dist.group.WORLD
    assert world is not None
    values = {f"section/metric_{index}": torch.rand(64) for index in range(metrics)}

    def record() -> None:
        tracker.stat_compact(mask, **values)

    for _ in range(3):
        record()
        tracker.export(reduce_group=world)
    maximum, total = _CHANNELS[world][f"tracker:{tracker.name}"].capacity
    buffers = torch.zeros(maximum, dtype=torch.float64), torch.zeros(total, dtype=torch.float64)

    def bare() -> None:
        dist.all_reduce(buffers[0], op=dist.ReduceOp.MAX)
        dist.all_reduce(buffers[1])

    rounds: tuple[list[float], list[float], list[float]] = ([], [], [])
    gc.disable()
    for _ in range(ROUNDS):
        rounds[0].append(timed(bare))
        record()
        rounds[1].append(timed(lambda: tracker.export(reduce_group=world)))
        record()
        rounds[2].append(timed(tracker.export))
    gc.enable()
    return maximum * 8, total * 8, *rounds


def rank_main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = []
    for metrics in METRICS:
        maximum, total, bare, reduced, local = measure(metrics)
        ratio = min(reduced) / min(bare)
        figures = [min(bare), min(reduced), min(local), statistics.median(bare), statistics.median(reduced)]
        rows.append((metrics, maximum, total, *(seconds * 1e6 for seconds in figures), ratio))
    if rank == 0:
        headers = (
            *("metrics", "MAX bytes", "SUM bytes", "two all_reduces, min µs", "export, min µs"),
            *("export without group, min µs", "two all_reduces, median µs", "export, median µs", "ratio of minima"),
        )
        print(tabulate(rows, headers, floatfmt=("d", "d", "d", *[".0f"] * 5, ".2f")))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (os.path.join(folder, "store"),), nprocs=2)
