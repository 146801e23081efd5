"""How the costs grow: with metrics, with layers and experts, with steps. One process, one thread.

python benchmarks/bench_growth.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import torch
from tabulate import tabulate
from torch import Tensor, nn

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.training_forward import TrainingForward

METRICS = (10, 50, 500, 5000)
SHAPES = ((4, 8), (16, 64), (48, 128), (96, 512))
STEPS = (100, 1_000, 10_000, 100_000)
TOKENS, TOP_K = 256, 8


def median_of(call: Callable[[], object], rounds: int = 15) -> float:
    """Seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def print_table(rows: Iterable[tuple[object, ...]], *headers: str) -> None:
    print(tabulate(list(rows), headers, tablefmt="github", floatfmt=".2f", intfmt=","), end="\n\n", flush=True)


def metrics_row(number: int) -> tuple[object, ...]:
    """Average, minimum and maximum of so many tensors of 64 values."""
    tracker, mask = StatsTracker(), torch.ones(64, dtype=torch.bool)
    values = {f"metric_{index}": torch.rand(64) for index in range(number)}

    def record() -> None:
        tracker.stat_compact(mask, **values)

    record()
    recording, exporting = [], []
    for _ in range(15):
        recording.append(median_of(record, 1))
        exporting.append(median_of(tracker.export, 1))
    record()
    kept = sum(block._rows.nbytes for block in tracker._accumulator._blocks.values())
    record_time, export_time = statistics.median(recording), statistics.median(exporting)
    return number, record_time * 1e6 / number, export_time * 1e3, export_time * 1e6 / number, kept / number


class TinyTopKRouter(nn.Module):
    """Puts out ready choices."""

    top_k = TOP_K

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.num_experts = experts
        self.output = torch.rand(TOKENS, experts), torch.randint(0, experts, (TOKENS, TOP_K))

    def forward(self, _: None) -> tuple[Tensor, Tensor]:
        return self.output[0], self.output[1].clone()


class Model(nn.Module):
    def __init__(self, layers: int, experts: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"router": TinyTopKRouter(experts)}) for _ in range(layers))

    def forward(self) -> None:
        for layer in self.layers:
            layer["router"](None)


def routing_row(layers: int, experts: int) -> tuple[object, ...]:
    """Interleaved forwards of the same routers with and without hooks."""
    plain, model, forward = Model(layers, experts), Model(layers, experts), TrainingForward()
    monitor = MoEBalanceMonitor(forward)
    monitor.attach([model], torch.device("cpu"))
    forward.attach([model])
    for _ in range(3):
        model()
    pairs = [(median_of(plain, 1), median_of(model, 1)) for _ in range(200)]
    bare, hooked = (statistics.mean(times) for times in zip(*pairs))  # the mean: some steps count for many
    exporting = []
    for _ in range(15):
        model()
        start = time.perf_counter()
        loads = monitor.expert_loads(monitor.collect())
        assert loads is not None
        monitor.derive(loads)
        exporting.append(time.perf_counter() - start)
    export = statistics.median(exporting)
    return f"{layers} × {experts}", (hooked - bare) * 1e6, (hooked - bare) * 1e6 / layers, export * 1e3


def steps_row(steps: int) -> tuple[object, ...]:
    tracker, mask, values = StatsTracker(), torch.ones(64, dtype=torch.bool), torch.rand(64)
    start = time.perf_counter()
    for _ in range(steps):
        tracker.scalar(loss=0.5)
        tracker.stat_compact(mask, reward=values)
    recording = time.perf_counter() - start
    kept = sum(block._rows.nbytes for block in tracker._accumulator._blocks.values())
    start = time.perf_counter()
    tracker.export()
    return steps, recording / steps * 1e6, kept, (time.perf_counter() - start) * 1e3


def main() -> None:
    torch.set_num_threads(1)
    rows = map(metrics_row, METRICS)
    print_table(rows, "metrics", "record, µs each", "export, ms", "export, µs each", "bytes kept each")
    shapes = (routing_row(*shape) for shape in SHAPES)
    print_table(shapes, "layers × experts, 256 tokens, top-8", "a step, µs", "a router, µs", "collect and derive, ms")
    print_table(map(steps_row, STEPS), "steps before an export", "record, µs a step", "bytes kept", "export, ms")


if __name__ == "__main__":
    main()
