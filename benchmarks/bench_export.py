"""What an export costs over gloo processes, against two bare ``all_reduce`` calls of the same sizes.

    python benchmarks/bench_export.py [processes] [rounds]

The export takes what was recorded, packs it, reduces MAX and SUM, unpacks and names every metric. Rounds are
interleaved behind a barrier and the minimum is compared: the latency of gloo on a busy machine has several modes. The
first export is one that has to agree on its keys; where ranks differ, each has one key of its own.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from slowest import timed
from tabulate import tabulate

from areal_callbacks.core.reduce import _CHANNELS
from areal_callbacks.core.tracker import StatsTracker

METRICS, ROUNDS = (100, 500), 300


class Case:
    """A tracker with some metrics, and the ways to reduce them that are compared."""

    def __init__(self, metrics: int) -> None:
        group = dist.group.WORLD
        assert group is not None
        self.group, self.tracker = group, StatsTracker(f"bench{metrics}")
        self.mask = torch.ones(64, dtype=torch.bool)
        self.values = {f"section/metric_{index}": torch.rand(64) for index in range(metrics)}
        self.record()
        self.export()
        (self.channel,) = (each for name, each in _CHANNELS[group].items() if name.endswith(self.tracker.name))
        self.buffers = [torch.zeros(size, dtype=torch.float64) for size in self.channel.capacity]

    def record(self, own: bool = False) -> None:
        self.tracker.stat_compact(self.mask, **self.values)
        if own:
            self.tracker.stat_compact(self.mask, **{f"of_rank_{dist.get_rank()}": self.values["section/metric_0"]})

    def bare(self) -> None:
        dist.all_reduce(self.buffers[0], op=dist.ReduceOp.MAX)
        dist.all_reduce(self.buffers[1])

    def export(self) -> None:
        self.tracker.export(reduce_group=self.group)

    def rounds(self, number: int) -> Iterator[dict[str, float]]:
        """Seconds of each way, round by round."""
        for _ in range(number):
            seconds = {"two all_reduces": timed(self.bare)}
            for name, own in (("first export", False), ("first, keys differ", True)):
                self.channel.forget()
                self.record(own)
                seconds[name] = timed(self.export)
            self.channel.forget()
            for name, export in (("", self.export), ("export", self.export), ("without group", self.tracker.export)):
                self.record()
                seconds[name] = timed(export)
            yield seconds


def rank_main(rank: int, processes: int, number: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    rows = []
    for metrics in METRICS:
        case = Case(metrics)
        gc.disable()
        rounds = list(case.rounds(number))
        gc.enable()
        names = [name for name in rounds[0] if name]
        least = {name: min(each[name] for each in rounds) * 1e6 for name in names}
        middle = {name: statistics.median(each[name] for each in rounds) * 1e6 for name in names}
        sizes = "/".join(str(buffer.nbytes) for buffer in case.buffers)
        rows.append((metrics, sizes, "minimum", *least.values(), least["export"] / least["two all_reduces"]))
        rows.append((metrics, sizes, "median", *middle.values(), middle["export"] / middle["two all_reduces"]))
    if rank == 0:
        headers = ("metrics", "MAX/SUM bytes", "µs", *names, "export / two all_reduces")
        print(f"{processes} processes", tabulate(rows, headers, floatfmt=("d", "", "", *[".0f"] * 5, ".2f")), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    processes, number = (*map(int, sys.argv[1:]), *(2, ROUNDS)[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (processes, number, os.path.join(folder, "store")), nprocs=processes)
