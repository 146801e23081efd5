"""What an estimate costs: one length, 4,096 lengths, and compiling a configuration.

    python benchmarks/bench_flops.py

Limits: 1 µs a length, 3 ms for 4,096 lengths. Times are minima over rounds, with the loop around the call.
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
ROUNDS, CALLS = 20, 20000


def seconds_of(call: Callable[[], Any], repeats: int) -> float:
    """Least seconds per call over all rounds."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        rounds.append((time.perf_counter() - start) / repeats)
    return min(rounds)


def row_of(model_type: str) -> tuple[str, float, float, float]:
    config = CONFIG_MAPPING[model_type]()
    estimate = get_flops_estimator(config)
    assert estimate is not None
    one = seconds_of(lambda: estimate(4096), CALLS)
    many = seconds_of(lambda: [estimate(length) for length in LENGTHS], 1)
    return model_type, one * 1e6, many * 1e3, seconds_of(lambda: get_flops_estimator(config), 5) * 1e3


def main() -> None:
    """Print the table."""
    headers = ("model type", "µs a length", "ms for 4,096 lengths", "ms to compile")
    print(tabulate([row_of(model_type) for model_type in MODEL_TYPES], headers, floatfmt=".2f"))


if __name__ == "__main__":
    main()
