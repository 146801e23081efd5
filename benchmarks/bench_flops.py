"""What an estimate costs: one length, 4,096 lengths, and compiling a configuration.

    python benchmarks/bench_flops.py

Limits: 1 µs a length, 3 ms for 4,096 lengths. Times are minima over rounds, with the loop around the call. Rounds are
many and short, so that some of them are not interrupted. The yardstick is the polynomial a·L + b·L·(L+1) as a function
of its own: on a busy machine, read the others beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tabulate import tabulate
from transformers import CONFIG_MAPPING

from areal_callbacks.flops import get_flops_estimator

MODEL_TYPES = [
    "llama",
    "qwen3_moe",
    "deepseek_v3",
    "gpt_oss",
    "qwen3_5_moe_text",
    "gemma3_text",
    "llama4_text",
    "bert",
    "t5",
]
LENGTHS = list(range(1, 4097))
ROUNDS, CALLS = 300, 500


def seconds_of(call: Callable[[], Any], repeats: int, rounds: int = ROUNDS) -> float:
    """Least seconds per call over all rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats)
    return min(times)


def polynomial(length: int, a: int = 18249940992, b: int = 1179648) -> int:
    """Qwen3-30B-A3B's, without checks."""
    return length * (a + b * (length + 1))


def times_of(estimate: Callable[[int], float]) -> tuple[float, float]:
    """Microseconds a length, and milliseconds for all of them."""
    one = seconds_of(lambda: estimate(4096), CALLS)
    return one * 1e6, seconds_of(lambda: [estimate(length) for length in LENGTHS], 1) * 1e3


def row_of(model_type: str) -> tuple[str, float, float, float]:
    config = CONFIG_MAPPING[model_type]()
    estimate = get_flops_estimator(config)
    assert estimate is not None
    return model_type, *times_of(estimate), seconds_of(lambda: get_flops_estimator(config), 1, 20) * 1e3


def main() -> None:
    """Print the table."""
    headers = ("model type", "µs a length", "ms for 4,096 lengths", "ms to compile")
    rows = [("yardstick", *times_of(polynomial), 0.0), *map(row_of, MODEL_TYPES)]
    print(tabulate(rows, headers, floatfmt=".2f"))


if __name__ == "__main__":
    main()
