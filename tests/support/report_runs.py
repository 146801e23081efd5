"""Runs on disk for the tests of what reads metrics.jsonl, written by the real writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.jsonl import JsonlWriter

START = 1_700_000_000.0


def loads(counts: Mapping[tuple[str, int], Any] | NDArray[Any]) -> ExpertLoads:
    """Of an integer array [layers, experts] of the main decoder, or of (stack, layer) → counts."""
    if isinstance(counts, np.ndarray):
        counts = {("", layer): row for layer, row in enumerate(counts)}
    return ExpertLoads(
        tuple(
            LayerLoads(stack, layer, torch.as_tensor(np.asarray(row), dtype=torch.int64))
            for (stack, layer), row in sorted(counts.items())
        )
    )


def export(step: int, metrics: Mapping[str, float] | None = None, counts: Any = None, **host: float) -> Export:
    """With the per-layer scalars that a real export holds beside its counts."""
    expert_loads = None if counts is None else loads(counts)
    scalars = {} if expert_loads is None else expert_loads.max_over_ideal()
    return Export(step, {**scalars, **(metrics or {})}, expert_loads, host, START + step)


def write_run(folder: Path, exports: Iterable[Export], config: Mapping[str, Any] | None = None) -> Path:
    """One start of a run; a second call in the same folder resumes it."""
    writer = JsonlWriter()
    writer.open(Run(folder, config or {}))
    for one in exports:
        writer.write(one)
    writer.close()
    return folder / METRICS_FILE


def typical_metrics(step: int, steps: int) -> dict[str, float]:
    """What an export of a PPO run with throughput holds, smooth in the step."""
    progress = step / steps
    metrics = {
        "train_perf/tokens": 4096.0 * step,
        "train_perf/seconds": 2.0 + progress,
        "train_perf/seconds_mean": 1.9 + progress,
        "train_perf/tokens_per_second": 1000.0 + step,
        "train_perf/cumulative_tokens_per_second": 1000.0 + step / 2,
        "train_perf/estimated_flops_per_second": 1e12 * (1 + progress),
        "train_perf/mfu": 0.25,
        "train_perf/optimizer_steps": 2.0,
        "train_perf/total_tokens": 4096.0 * step * (step + 1) / 2,
        "train_perf/total_seconds": 2.5 * step,
        "timeperf/optimizer_step": 0.25,
        "timeperf/rollout": 3.0 - progress,
        "rollout/reward": progress,
    }
    for decade, bound in enumerate(("1.5", "2", "3", "5", "10")):
        metrics[f"ppo_actor/train_infer/ratio_outside_{bound}"] = 0.03 * 10.0**-decade * (1 + progress)
    for number in (1, 2, 3):
        metrics[f"ppo_actor/train_infer/kl_k{number}"] = 1e-3 * number
    metrics["ppo_actor/train_infer/logp_abs_diff/avg"] = 0.01
    for policy in ("theta", "proximal"):
        for name, value in (("avg", 1.5), ("min", 0.0), ("max", 4.0)):
            metrics[f"ppo_actor/update/version_stats/sample_staleness_{policy}_{name}"] = value
    metrics["ppo_actor/update/version_stats/stale_token_fraction"] = 0.5
    return metrics
