"""What the train/rollout metrics cost on a million valid tokens, against recording thirteen ready tensors one by one.

    python benchmarks/bench_ppo.py

The yardstick gets the thirteen float32 tensors (d, |d|, d², both NLLs, k1, k2, k3, five tails) for nothing and takes
sum, minimum and maximum of each with the padding replaced; ours starts from the two log-probabilities, in float64.
Rounds are interleaved. One process, one thread; figures of one machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from tabulate import tabulate

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.tails import THRESHOLDS
from areal_callbacks.ppo.train_infer import log_train_inference_stats

ROUNDS, SEQUENCES, LENGTH = 25, 250, 4000


def thirteen_tensors(trainer: torch.Tensor, rollout: torch.Tensor) -> list[torch.Tensor]:
    d = trainer - rollout
    size = d.abs()
    tails = [(size > math.log(threshold)).float() for threshold in THRESHOLDS]
    return [d, size, d * d, -trainer, -rollout, -d, d * d / 2, torch.expm1(d) - d, *tails]


def one_by_one(tensors: list[torch.Tensor], mask: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    return [
        (
            torch.where(mask, values, 0).sum(),
            torch.where(mask, values, math.inf).min(),
            torch.where(mask, values, -math.inf).max(),
        )
        for values in tensors
    ]


def replaced_once(tensors: list[torch.Tensor], mask: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """The cheaper, wrong way: with zeros for padding, extrema are those of the zeros."""
    replaced = [torch.where(mask, values, 0) for values in tensors]
    return [(values.sum(), values.min(), values.max()) for values in replaced]


def calls_of(padding: int) -> dict[str, Callable[[], object]]:
    """The contestants on rows of 4,000 valid tokens and some padding."""
    torch.manual_seed(0)
    shape = (SEQUENCES, LENGTH + padding)
    trainer = -3 * torch.rand(shape)
    rollout = trainer + 0.02 * torch.randn(shape)
    rollout[torch.rand(shape) < 0.002] += 2.0
    mask = (torch.arange(LENGTH + padding) < LENGTH).expand(shape).contiguous()
    tensors, tracker = thirteen_tensors(trainer, rollout), StatsTracker()
    more = {"versions": torch.randint(0, 5, shape), "current_version": 4, "advantages": torch.randn(shape)}
    return {
        "thirteen ready tensors one by one (1.00)": lambda: one_by_one(tensors, mask),
        "the same, replaced once": lambda: replaced_once(tensors, mask),
        "the same, tensors computed too": lambda: one_by_one(thirteen_tensors(trainer, rollout), mask),
        "all specified metrics": lambda: log_train_inference_stats(trainer, rollout, mask, tracker, extended=False),
        "and the extensions": lambda: log_train_inference_stats(trainer, rollout, mask, tracker),
        "and by age and advantage": lambda: log_train_inference_stats(trainer, rollout, mask, tracker, **more),
    }


def main() -> None:
    torch.set_num_threads(1)
    for padding in (0, 2000):
        calls = calls_of(padding)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(times) * 1e3 for name, times in seconds.items()}
        first = next(iter(medians.values()))
        rows = [(name, median, median / first) for name, median in medians.items()]
        title = f"1,000,000 valid tokens, {SEQUENCES * padding:,} of padding"
        print(tabulate(rows, (title, "median ms", "ratio"), floatfmt=".2f"), end="\n\n")


if __name__ == "__main__":
    main()
