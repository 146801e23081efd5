"""What an export costs as ranks multiply: every rank's own code over a simulated process group, 8 to 16,384 ranks.

    python benchmarks/bench_scale.py [ranks ...] [scenario ...]

The group compares, combines and counts what the ranks hand over, and takes no time of its own. CPU is the thread time
of one rank's code in an export, without the collectives. Memory is the peak of one rank's export, run again alone,
beyond its records and the buffers that it reduces. 16,384 ranks take some minutes and gigabytes.

    equal       every rank brings 100 statistics, 17 vectors of throughput and 48 layers of 128 experts
    pipeline    16 stages of 3 layers each; one rank in 8 (tensor parallel) brings the statistics
    one name    the same, later: one rank records a new statistic
    rare names  every rank brings two statistics that all share and, 10,000 of them, one that no other has; of 16,384
                ranks only one goes on once all have sent their names, because each of them then keeps thousands
"""

from __future__ import annotations

import gc
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from support.fake_ranks import SimulatedGroup, SimulatedWorld
from tabulate import tabulate

from areal_callbacks.core.grouped_export import reduce_grouped
from areal_callbacks.core.packing import Families
from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import _CHANNELS
from areal_callbacks.core.types import ReduceType

WORLDS = (8, 64, 1024, 16384)
METRICS, LAYERS, EXPERTS, STAGES, TENSOR, RARE = 100, 48, 128, 16, 8, 10_000
COUNTS = torch.ones(EXPERTS, dtype=torch.float64)

HEADERS = (
    *("ranks", "export", "collectives", "kB reduced", "CPU ms, median", "CPU ms, worst"),
    "MB beyond buffers",
)


def summaries(*names: str) -> Records:
    rows = torch.tensor([[1.0, 2.0, 0.0, 1.0]], dtype=torch.float64).expand(len(names), 4)
    return Records(tuple((name, ReduceType.AVG_MIN_MAX) for name in names), rows)


STATISTICS = summaries(*(f"ppo_actor/update/metric_{index}" for index in range(METRICS)))
MORE = summaries(*(name for name, _ in STATISTICS.keys), "ppo_actor/update/late")
THROUGHPUT = Records(
    sums={f"sum_{index}": COUNTS[:1] for index in range(6)},
    maxima={f"maximum_{index}": COUNTS[:1] for index in range(11)},
)
EVERY_LAYER = Records(sums={f"/{layer}": COUNTS for layer in range(LAYERS)})
OF_STAGE = [Records(sums={f"/{layer}": COUNTS for layer in range(stage, LAYERS, STAGES)}) for stage in range(STAGES)]


def equal(_rank: int) -> Families:
    return {"stats": STATISTICS, "throughput": THROUGHPUT, "moe_balance": EVERY_LAYER}


def pipeline(rank: int, more: bool = False) -> Families:
    own = (MORE if more else STATISTICS) if rank % TENSOR == 0 else Records()
    return {"stats": own, "throughput": THROUGHPUT, "moe_balance": OF_STAGE[rank // TENSOR % STAGES]}


def one_name(rank: int) -> Families:
    return pipeline(rank, more=rank == 0)


def rare_names(rank: int) -> Families:
    shared = "reward", "loss"
    return {"stats": summaries(*shared, f"env_{rank}/reward") if rank < RARE else summaries(*shared)}


def job_of(families: Callable[[int], Families]) -> Callable[[SimulatedGroup], Any]:
    return lambda group: reduce_grouped(families(group.rank), group, "session") and None  # type: ignore[arg-type]


def measure(
    world: SimulatedWorld, families: Callable[[int], Families], alone_after: int | None = None
) -> tuple[int, float, float, float]:
    """Collectives, kilobytes that a rank hands over, and median and worst CPU milliseconds of one export."""
    before, cpu = len(world.collectives), [group.cpu for group in world.groups]
    gc.collect()
    gc.disable()
    world.run(job_of(families), alone_after)
    gc.enable()
    spent = [(group.cpu - start) * 1e3 for group, start in zip(world.groups, cpu)]
    done = world.collectives[before:]
    return len(done), sum(each.value.nbytes for each in done) / 1e3, statistics.median(spent), max(spent)


def memory_of_first(world: SimulatedWorld, families: Callable[[int], Families], rank: int) -> float:
    """Megabytes of Python objects and tensors at the peak of a rank's first export, without both pairs of buffers."""
    job = job_of(families)
    world.replay(job, rank)
    tracemalloc.start()
    world.replay(job, rank)
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        world.replay(job, rank)
    tensors = peak_of_tensors(profiler)
    capacity = _CHANNELS[world.groups[rank]]["session"].capacity  # type: ignore[index]
    return (python + max(0, tensors - 8 * (sum(capacity) + 2048))) / 1e6


def peak_of_tensors(profiler: torch.profiler.profile) -> int:
    """The largest number of bytes held at once by tensors made inside the profile."""
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = peak = 0
    for event in sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


SCENARIOS: dict[str, Callable[[int], Families]] = {"equal": equal, "pipeline": pipeline, "rare names": rare_names}


def rows_of(ranks: int, scenarios: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Scenarios on a world of this size."""
    for name, families in ((name, SCENARIOS[name]) for name in scenarios):
        world = SimulatedWorld(ranks)
        first = measure(world, families, 6 if families is rare_names and ranks > 2048 else None)
        memory = max(memory_of_first(world, families, rank) for rank in {0, len(world.groups) - 1})
        yield (ranks, f"{name}, first", *first, memory)
        yield (ranks, f"{name}, later", *measure(world, families), None)
        if families is pipeline:
            yield (ranks, "one name", *measure(world, one_name), None)


def print_layouts(count: int, world: int) -> None:
    """How often the ranks of random Megatron layouts tell each token, by their places alone: once."""
    try:
        from support.megatron_ranks import random_layouts_of, told_per_token
    except ImportError:
        print("megatron-core is not installed: layouts are left out")
        return
    rows = []
    for layout in random_layouts_of(count, world, seed=1):
        sizes = (layout.tp, layout.cp, layout.ep, layout.dp, layout.pp, layout.sequence_parallel)
        rows.append((*sizes, *told_per_token(layout)))
    headers = "tp", "cp", "ep", "dp", "pp", "sequence parallel", "tokens", "routes", "statistics"
    print(f"{count} random layouts of {world} ranks, times that each is told:", tabulate(rows, headers), sep="\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    table = []
    worlds = [int(argument) for argument in sys.argv[1:] if argument.isdigit()] or WORLDS
    scenarios = [argument for argument in sys.argv[1:] if not argument.isdigit()] or [*SCENARIOS]
    for ranks in worlds:
        for row in rows_of(ranks, scenarios):
            table.append(row)
            print(*row, file=sys.stderr, flush=True)
    print(tabulate(table, HEADERS, floatfmt=("d", "", "d", ".1f", ".2f", ".2f", ".2f"), missingval="–"), end="\n\n")
    print_layouts(40, 16384)
