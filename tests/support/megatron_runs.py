"""One call of Megatron-LM's ``pretrain`` on two ranks, and what it left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.distributed import Ranks
from support.tiny_megatron import LENGTH, MICRO_BATCHES, ROWS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

JOBS = Path(__file__).with_name("megatron_jobs.py")
TOKENS = MICRO_BATCHES * ROWS * LENGTH
"""Of one iteration: both ranks are stages of one pipeline."""


class Run:
    """One call of pretrain on two ranks, and what it left on disk."""

    def __init__(self, ranks: Ranks, folder: Path, *arguments: str, variant: str = "training", **options: Any) -> None:
        self.folder = folder
        line = ["--pipeline-model-parallel-size", "2", "--tensorboard-dir", str(folder / "tensorboard"), *arguments]
        self.ranks = ranks.run_from(JOBS, "pretrain", variant, line, {"output_dir": str(folder), **options})

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        return metrics_by_step(self.folder)

    def series(self, name: str) -> dict[int, float]:
        return tensorboard_series(self.folder / "tensorboard", name)


def metrics_by_step(folder: Path) -> dict[int, dict[str, float]]:
    records = read_metrics(folder / "metrics.jsonl")
    return {record.step: record.metrics for record in records if isinstance(record, MetricsRecord)}


def tensorboard_series(folder: Path, name: str) -> dict[int, float]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}
