"""What recording and exporting costs beside other trackers, in one run.

    python benchmarks/bench_peers.py [--seconds 12] [--processes 2 4] [--metrics 100 500]

Each tracker records average, minimum and maximum of float32 tensors under a mask, and exports them over gloo processes.
Rounds are interleaved behind a barrier, and the slowest rank counts. Lightning has no masks: it is given the three
numbers ready, and they are reduced when they are logged. "Two all_reduces" are bare ones of as many bytes as ours.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from contestants import find_contestants
from slowest import timed
from tabulate import tabulate
from torch.distributed import distributed_c10d

from areal_callbacks.core.reduce import _CHANNELS

LENGTH = 64
BARE = "two all_reduces"
PRIMITIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce", "barrier")


@contextmanager
def counted() -> Iterator[list[int]]:
    """The collectives that run inside the block."""
    count = [0]
    originals = {name: getattr(distributed_c10d, name) for name in PRIMITIVES}

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return original(*args, **kwargs)

        return call

    places = (dist, distributed_c10d)
    for name, original in originals.items():
        for place in places:
            setattr(place, name, around(original))
    try:
        yield count
    finally:
        for name, original in originals.items():
            for place in places:
                setattr(place, name, original)


def exports(metrics: int, seconds: float) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each export, round by round, and its collectives."""
    group: Any = dist.group.WORLD
    contestants = {name: kind(group) for name, kind in find_contestants().items()}
    mask, values = torch.rand(LENGTH) < 0.7, {f"section/metric_{index}": torch.rand(LENGTH) for index in range(metrics)}
    contestants["areal_callbacks"].record(mask, values)
    contestants["areal_callbacks"].export()  # the first one agrees on keys
    channel = next(each for name, each in _CHANNELS[group].items() if name.endswith("bench"))
    buffers = [torch.zeros(size, dtype=torch.float64) for size in channel.capacity]

    def bare() -> None:
        dist.all_reduce(buffers[0], op=dist.ReduceOp.MAX)
        dist.all_reduce(buffers[1])

    def seconds_of(name: str) -> float:
        if name == BARE:
            return timed(bare)
        contestants[name].record(mask, values)
        return timed(contestants[name].export)

    times: dict[str, list[float]] = {}
    collectives: dict[str, int] = {}
    for name in (BARE, *contestants):
        with counted() as count:
            times[name] = [seconds_of(name)]
        collectives[name] = count[0] - 2  # those of the stopwatch
    deadline = time.perf_counter() + seconds
    while not _is_over(deadline):
        for name, each in times.items():
            if sum(each) <= seconds / len(times):  # the slow ones run less often; equal on all ranks
                each.append(seconds_of(name))
    return times, collectives


def _is_over(deadline: float) -> bool:
    """The first rank decides for all."""
    over = torch.tensor([time.perf_counter() > deadline])
    dist.broadcast(over, 0)
    return bool(over)


def rank_main(rank: int, processes: int, store: str, seconds: float, numbers: list[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    rows = []
    for metrics in numbers:
        gc.collect()
        gc.disable()
        times, collectives = exports(metrics, seconds)
        gc.enable()
        ours, bare = statistics.median(times["areal_callbacks"]), min(times[BARE])
        for name, each in times.items():
            middle, least = statistics.median(each), min(each)
            relative = middle / ours if name != BARE else None
            rows.append(
                (metrics, name, collectives[name], len(each), least * 1e3, middle * 1e3, relative, least / bare)
            )
    if rank == 0:
        headers = ("metrics", f"export over {processes} processes", "collectives", "rounds", "minimum ms", "median ms")
        more = ("median / ours", "minimum / two all_reduces")
        print(
            tabulate(
                rows, (*headers, *more), tablefmt="github", floatfmt=("d", "", "d", "d", ".2f", ".2f", ".1f", ".2f")
            )
        )
        print(flush=True)
    dist.destroy_process_group()


def held_bytes() -> int:
    """Of all tensors that are alive."""
    gc.collect()
    storages: dict[int, int] = {}
    for each in gc.get_objects():
        if type(each) is torch.Tensor:
            storage = each.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def print_recording(seconds: float) -> None:
    """One process: what recording takes, and what is kept of it."""
    tokens, metrics = 32_768, 13
    mask, values = torch.rand(tokens) < 0.7, {f"metric_{index}": torch.rand(tokens) for index in range(metrics)}
    kinds = find_contestants()
    contestants = {name: kind(None) for name, kind in kinds.items()}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant.record(mask, values)
            times[name].append(time.perf_counter() - start)
            if len(times[name]) % 20 == 0:
                contestant.export()
    rows = []
    for name, each in times.items():
        middle = statistics.median(each)
        ratio = middle / statistics.median(times["areal_callbacks"])
        rows.append((name, min(each) * 1e6, middle * 1e6, ratio, _bytes_per_token(kinds[name])))
    headers = (
        "recording 13 tensors of 32,768 tokens",
        "minimum µs",
        "median µs",
        "median / ours",
        "bytes kept per token",
    )
    print(tabulate(rows, headers, tablefmt="github", floatfmt=("", ".0f", ".0f", ".2f", ".3f")), end="\n\n", flush=True)


def _bytes_per_token(kind: type[Any]) -> float:
    """Of one metric, over 20 batches, which a mask of one byte a token comes with."""
    before, contestant, tokens = held_bytes(), kind(None), 4096
    for _ in range(20):
        contestant.record(torch.ones(tokens, dtype=torch.bool), {"metric": torch.rand(tokens)})
    return (held_bytes() - before) / (20 * tokens)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0, help="for each number of processes and metrics")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--metrics", type=int, nargs="+", default=[100, 500])
    chosen = parser.parse_args()
    seconds = chosen.seconds
    torch.set_num_threads(1)
    print_recording(seconds / 2)
    for processes in chosen.processes:
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            mp.spawn(rank_main, (processes, store, seconds, chosen.metrics), nprocs=processes)


if __name__ == "__main__":
    main()
