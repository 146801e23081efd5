"""What counting routed experts costs.

    python benchmarks/bench_moe.py

The count itself: 48 layers × 128 experts × 8,192 tokens × top-8 against a bare ``scatter_add_`` and against
``one_hot(...).sum()``. A router call: one of 48 small routers in a forward, with our hook against without one.
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
ROUNDS, CALLS, ROUTERS = 400, 96, 48


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
    forward._begun_outside = torch._C._current_graph_task_id()  # as a lookup in an embedding does

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


class Routers(nn.Module):
    """Calls several routers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"router": TinyTopKRouter()}) for _ in range(ROUTERS))

    def forward(self) -> None:
        for layer in self.layers:
            layer["router"](None)


def router_call() -> None:
    """The fixed cost of one call of one router, and its share of the counting at the end of the forward."""
    plain, hooked, forward = Routers(), Routers(), TrainingForward()
    MoEBalanceMonitor(forward).attach([hooked], torch.device("cpu"))
    forward.attach([hooked])
    idle = Routers().eval()
    MoEBalanceMonitor(forward).attach([idle], torch.device("cpu"))
    forward.attach([idle])
    ids, cells = hooked.layers[0]["router"].output[2], torch.zeros(10, dtype=torch.int64)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "router without a hook": (plain, CALLS // ROUTERS),
        "router with our hook": (hooked, CALLS // ROUTERS),
        "router with our hook, evaluation": (idle, CALLS // ROUTERS),
        "adding at once": (lambda: [add_routed(ids, cells) for _ in range(ROUTERS)], CALLS // ROUTERS),
    }
    seconds = {name: value / ROUTERS for name, value in best(calls).items()}
    without, with_hook, evaluating, _ = seconds.values()
    rows = [(name, f"{1e6 * value:.1f}") for name, value in seconds.items()]
    rows.append(("**overhead in training**", f"{1e6 * (with_hook - without):.1f}"))
    rows.append(("**overhead in evaluation**", f"{1e6 * (evaluating - without):.1f}"))
    print(tabulate(rows, ("a router call", "µs"), tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    counting()
    print()
    router_call()
