"""Whether exports stay as quick and as small after many of them: a session that exports after every step.

    python benchmarks/bench_long_runs.py [exports] [processes]

A step is the training forward of a mixture of 4 layers and 6 experts, with statistics of a mask, a scalar and a timing.
Every export also writes metrics.jsonl. CPU is the thread time of an export on rank 0, which includes waiting for no
other rank; every row is a tenth of the run.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.toy_moe import ToyMoE, batches
from tabulate import tabulate

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.session.session import MetricsSession
from areal_callbacks.topology import Topology

EXPORTS, PARTS = 100_000, 10
HEADERS = "exports", "CPU µs, median", "µs, median", "µs, 99 %", "resident MB", "Python objects", "metrics.jsonl MB"


def run_step(session: MetricsSession, model: torch.nn.Module, batch: torch.Tensor) -> None:
    """What a loop does between two exports."""
    session.begin()
    with session.tracker.record_timing("forward"):
        logits = model(batch)
    session.tracker.denominator(tokens=torch.ones(batch.shape, dtype=torch.bool))
    session.tracker.stat("tokens", entropy=logits.detach().amax(-1), logits=logits.detach().amin(-1))
    session.tracker.scalar(loss=1.0)
    session.end()


def timed_exports(session: MetricsSession, model: torch.nn.Module, count: int) -> Iterator[tuple[float, float]]:
    """Seconds of CPU and of the clock for each of so many exports."""
    data = batches(8)
    for step in range(1, count + 1):
        run_step(session, model, data[step % len(data)])
        clock, cpu = time.perf_counter(), time.thread_time()
        session.export(step)
        yield time.thread_time() - cpu, time.perf_counter() - clock


def resident() -> float:
    """Megabytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(exports: int, folder: Path) -> Iterator[tuple[object, ...]]:
    """One row for every tenth of the run."""
    model = ToyMoE()
    with MetricsSession(output_dir=folder, report=False, console="off") as session:
        session.attach(model, topology=Topology.data_parallel())
        seconds = timed_exports(session, model, exports)
        for part in range(1, PARTS + 1):
            cpu, clock = zip(*(next(seconds) for _ in range(exports // PARTS)))
            gc.collect()
            size = (folder / METRICS_FILE).stat().st_size / 1e6 if (folder / METRICS_FILE).exists() else 0.0
            times = statistics.median(cpu), statistics.median(clock), sorted(clock)[len(clock) * 99 // 100]
            yield part * exports // PARTS, *(1e6 * each for each in times), resident(), len(gc.get_objects()), size


def rank_main(rank: int, processes: int, exports: int, store: str) -> None:
    torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(exports, Path(folder)))
    if rank == 0:
        print(f"{exports:,} exports, {processes} processes")
        print(tabulate(rows, HEADERS, tablefmt="github", floatfmt=("d", ".0f", ".0f", ".0f", ".1f", "d", ".2f")))
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    exports, processes = (*map(int, sys.argv[1:]), *(EXPORTS, 1)[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (processes, exports, f"{folder}/store"), processes)
