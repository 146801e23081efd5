"""A run that is sick in known ways, for what shows findings, and the same run in health, by the real writer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.report_runs import START, export, write_run

from areal_callbacks.core.types import Export

LAYERS, EXPERTS = 12, 32
HOT = (7, 13)
STARVED_LAYER = 9
SECONDS = 45.0


@dataclass(frozen=True)
class Sickness:
    """What goes wrong with a run; ``None`` of it by default.

    Attributes:
        steps: of the run.
        slower: fraction of the throughput that is lost from six tenths of the run on.
        hottest: load of one expert over the ideal at the end.
        starved: experts of one layer that get next to nothing from half of the run on.
        mismatch: factor by which trainer and rollout drift apart.
    """

    steps: int = 200
    slower: float = 0.0
    hottest: float = 1.0
    starved: int = 0
    mismatch: float = 1.0
    layers: int = LAYERS
    experts: int = EXPERTS


SICK = Sickness(slower=0.26, hottest=16.0, starved=12, mismatch=9.0)


def write_sick_run(folder: Path, sickness: Sickness = SICK) -> Path:
    """The metrics.jsonl of the run, which starts when its steps say."""
    file = write_run(folder, make_exports(sickness), {"model": "tiny-moe", "learning_rate": 1e-5})
    first, rest = file.read_text().split("\n", 1)
    file.write_text(f"{json.dumps({**json.loads(first), 'time': START})}\n{rest}")
    return file


def make_exports(sickness: Sickness = SICK) -> Iterator[Export]:
    """Noise is the same at every call."""
    generator = np.random.default_rng(17)
    logits = generator.normal(0, 0.16, (sickness.layers, sickness.experts))
    for step in range(1, sickness.steps + 1):
        noise = generator.normal(size=8)
        counts = generator.poisson(_expected_loads(logits, step / sickness.steps, sickness))
        one = export(
            step, {**_policy(step, sickness, noise), **_speed(step, sickness, noise), **_balance(counts)}, counts
        )
        yield replace(one, host=_learning(step, sickness, noise), time=START + SECONDS * step)


def _expected_loads(logits: NDArray[np.float64], progress: float, sickness: Sickness) -> NDArray[np.float64]:
    loads = np.exp(logits)
    loads /= loads.mean(axis=1, keepdims=True)
    if sickness.starved and progress > 0.5:
        loads[STARVED_LAYER % sickness.layers, -sickness.starved :] *= 0.02
    ratio = sickness.hottest**progress
    if ratio > 1.01:
        layer, expert = HOT[0] % sickness.layers, HOT[1]
        others = loads[layer].sum() - loads[layer, expert]
        loads[layer, expert] = ratio * others / (sickness.experts - ratio)
    return 4096.0 * loads / loads.mean(axis=1, keepdims=True)


def _balance(counts: NDArray[np.int64]) -> dict[str, float]:
    ratios = counts.max(axis=1) / counts.mean(axis=1)
    return {
        "moe_balance/max_over_ideal_max": float(ratios.max()),
        "moe_balance/max_over_ideal_mean": float(ratios.mean()),
        "moe_balance/max_over_ideal_p50": float(np.quantile(ratios, 0.5)),
        "moe_balance/max_over_ideal_p90": float(np.quantile(ratios, 0.9)),
        "moe_balance/worst_layer": float(ratios.argmax()),
        "moe_balance/dead_experts": float((counts == 0).sum()),
        "moe_balance/starved_experts": float((counts < 0.1 * counts.mean(axis=1, keepdims=True)).sum()),
    }


def _speed(step: int, sickness: Sickness, noise: NDArray[np.float64]) -> dict[str, float]:
    warm = 1 - 0.5 * np.exp(-step / 3)
    rate = 41_000 * warm * (1 + 0.012 * noise[0]) * (1 - (sickness.slower if step > 0.6 * sickness.steps else 0))
    tokens = 1_310_720.0
    return {
        "train_perf/tokens": tokens,
        "train_perf/seconds": tokens / rate,
        "train_perf/seconds_mean": 0.97 * tokens / rate,
        "train_perf/tokens_per_second": rate,
        "train_perf/cumulative_tokens_per_second": rate,
        "train_perf/estimated_flops_per_second": rate * 1.9e10,
        "train_perf/mfu": rate * 1.9e10 / 1.98e15,
        "train_perf/optimizer_steps": 4.0,
        "train_perf/total_tokens": tokens * step,
        "train_perf/total_seconds": 32.0 * step,
        "timeperf/optimizer_step": 0.49 * (1 + 0.02 * noise[1]),
        "timeperf/rollout": 6.2 * (1 + 0.03 * noise[2]),
        "device_memory/peak_allocated_gib": 61.2,
        "device_memory/peak_reserved_gib": 68.5,
    }


def _policy(step: int, sickness: Sickness, noise: NDArray[np.float64]) -> dict[str, float]:
    drift = sickness.mismatch ** (step / sickness.steps) * (1 + 0.03 * noise[3])
    metrics = {
        f"ppo_actor/train_infer/kl_k{number}": 1.9e-4 * drift * (1.1 if number == 2 else 1) for number in (1, 2, 3)
    }
    for place, bound in enumerate(("1.5", "2", "3", "5", "10")):
        metrics[f"ppo_actor/train_infer/ratio_outside_{bound}"] = 0.004 * 8.0**-place * drift
        metrics[f"ppo_actor/train_infer/by_age/0/ratio_outside_{bound}"] = 0.003 * 8.0**-place * drift
        metrics[f"ppo_actor/train_infer/sequence_ratio_outside_{bound}"] = 0.01 * 4.0**-place * drift
    metrics["ppo_actor/train_infer/logp_abs_diff/avg"] = 0.006 * drift
    for name, value in (("avg", 1.6 + 0.1 * noise[4]), ("min", 0.0), ("max", 4.0)):
        metrics[f"ppo_actor/update/version_stats/sample_staleness_theta_{name}"] = value
    metrics["ppo_actor/update/version_stats/stale_token_fraction"] = 0.8 + 0.02 * noise[4]
    metrics["ppo_actor/update/clip_ratio/avg"] = 0.012 * (1 + 0.1 * noise[5])
    metrics["ppo_actor/seq_len/avg"] = 1200.0 + 1.5 * step + 20 * noise[6]
    return metrics


def _learning(step: int, sickness: Sickness, noise: NDArray[np.float64]) -> dict[str, float]:
    progress = step / sickness.steps
    return {
        "loss": 0.31 - 0.2 * progress + 0.02 * noise[5],
        "reward": 0.72 - 0.5 * np.exp(-3 * progress) + 0.03 * noise[6],
        "grad_norm": abs(0.21 + 0.03 * noise[7]),
        "learning_rate": 1e-5,
    }
