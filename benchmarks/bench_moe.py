"""What counting routed experts costs.

    python benchmarks/bench_moe.py

The count itself: 48 layers × 128 experts × 8,192 tokens × top-8 against a bare ``scatter_add_`` and against
``one_hot(...).sum()``. A router call: a small router with our hook against the same router without one, less the
operator's own work on a choice of that size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from areal_callbacks.monitors.moe_balance.counting import Counter, CountingSwitch, add_routed, count
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.training_forward import TrainingForward

LAYERS, EXPERTS, TOKENS, TOP_K = 48, 128, 8192, 8
ROUNDS, CALLS = 400, 100


def best(calls: dict[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """Seconds per call, the best of interleaved rounds; each call comes with its repetitions in a round."""
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, (call, repeats) in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            seconds[name] = min(seconds[name], (time.perf_counter() - start) / repeats)
    return seconds


def counting() -> None:
    """One training step's worth of routing."""
    ids = torch.randint(0, EXPERTS, (TOKENS, TOP_K))
    counters = [Counter(EXPERTS, torch.device("cpu")) for _ in range(LAYERS)]
    bare = torch.zeros(LAYERS, EXPERTS, dtype=torch.int64)
    forward = TrainingForward()
    switch = CountingSwitch(forward)
    forward.active = True

    def scatter() -> None:
        for row in bare:
            flat = ids.reshape(-1)
            row.scatter_add_(0, flat, torch.ones_like(flat))

    def ours() -> None:
        for counter in counters:
            count(ids, counter, switch.number)

    def one_hot_layer() -> Tensor:
        return nn.functional.one_hot(ids, EXPERTS).sum((0, 1))

    seconds = best({"bare scatter_add_": (scatter, 1), "ours": (ours, 1)})
    started = time.perf_counter()
    for _ in range(3):
        one_hot_layer()
    seconds["one_hot(...).sum()"] = (time.perf_counter() - started) / 3 * LAYERS
    yardstick = seconds["bare scatter_add_"]
    rows = [(name, f"{1e3 * value:.2f}", f"{value / yardstick:.2f}") for name, value in seconds.items()]
    print(tabulate(rows, ("counting a step", "ms", "of scatter_add_"), tablefmt="github", disable_numparse=True))


class TinyTopKRouter(nn.Module):
    """Does nothing but put out what a router puts out."""

    num_experts, top_k = 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.output: Any = (torch.rand(4, 8), torch.rand(4, 2), torch.randint(0, 8, (4, 2)))

    def forward(self, _: None) -> Any:
        return self.output


def router_call() -> None:
    """The fixed cost of one call of one router."""
    plain, hooked = TinyTopKRouter(), TinyTopKRouter()
    forward = TrainingForward()
    monitor = MoEBalanceMonitor(forward)
    monitor.attach([nn.ModuleList([hooked])], torch.device("cpu"))
    forward.active = True
    ids, cells = hooked.output[2], torch.zeros(10, dtype=torch.int64)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "router without a hook": (lambda: plain(None), CALLS),
        "router with our hook": (lambda: hooked(None), CALLS),
        "the addition alone": (lambda: add_routed(ids, cells), CALLS),
    }
    seconds = best(calls)
    forward.active = False
    seconds["router with our hook, evaluation"] = best({"idle": (lambda: hooked(None), CALLS)})["idle"]
    without, with_hook, addition, idle = (seconds[name] for name in (*calls, "router with our hook, evaluation"))
    rows = [(name, f"{1e6 * value:.1f}") for name, value in seconds.items()]
    rows.append(("**overhead in training, above the addition**", f"{1e6 * (with_hook - without - addition):.1f}"))
    rows.append(("**overhead in evaluation**", f"{1e6 * (idle - without):.1f}"))
    print(tabulate(rows, ("a router call", "µs"), tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    counting()
    print()
    router_call()
