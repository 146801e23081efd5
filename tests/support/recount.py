"""The independent recount against what the package exported, for tests of any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from areal_callbacks.core.types import Export
from areal_callbacks.integrations.fsdp import track
from areal_callbacks.verify import Recount, Totals
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics

__all__ = [
    "Recount",
    "loads_of",
    "routed_of",
    "tokens_of",
    "train_and_recount",
    "train_beside",
    "written_loads",
    "written_sum",
]

Loads = dict[tuple[str, int], list[int]]


def tokens_of(export: Any) -> int:
    """Tokens of an export; 0 where it has none."""
    return int(export.metrics.get("train_perf/tokens", 0))


def loads_of(export: Any) -> Loads:
    """Assignments by layer, of the layers that had any."""
    loads = export.expert_loads or ()
    return {(layer.stack, layer.layer): layer.counts.tolist() for layer in loads if bool(layer.counts.any())}


def routed_of(totals: Totals) -> Loads:
    """The recount's assignments by layer, of the layers that had any."""
    return {layer: counts for layer, counts in totals.routed.items() if any(counts)}


def train_and_recount(trainer: Any) -> Totals:
    """Train with a trainer of Transformers or TRL, and count all models that it holds again."""
    models = [value for value in vars(trainer).values() if isinstance(value, nn.Module)]
    with Recount(*models) as recount:
        trainer.train()
    assert not recount.totals.unread
    return recount.totals


def train_beside(
    model: nn.Module, folder: Path, loss: Callable[[Any], Tensor], *, steps: int = 1
) -> tuple[Export, Totals]:
    """Backward of a loss of a model, so many times, in a loop of one's own: what is exported, and the recount."""
    with Recount(model.train()) as recount, track(model, output_dir=str(folder), report=False) as metrics:
        for _ in range(steps):
            with metrics.step():
                loss(model).backward()  # type: ignore[no-untyped-call]
        export = metrics.export(steps)
    assert not recount.totals.unread
    return export, recount.totals


def written_sum(folder: Path, name: str = "train_perf/tokens") -> float:
    """A metric's sum over all exports that were written below a folder; 0 where no export has it."""
    return sum(record.metrics.get(name, 0) for record in _records(folder) if isinstance(record, MetricsRecord))


def written_loads(folder: Path) -> Loads:
    """Assignments by layer over all exports below a folder, of the layers that had any."""
    summed: dict[tuple[str, int], Counter[int]] = {}
    experts: dict[tuple[str, int], int] = {}
    for record in _records(folder):
        if isinstance(record, ExpertLoadsRecord):
            for layer, counts in zip(record.layers, record.counts):
                summed.setdefault((record.stack, layer), Counter()).update(dict(enumerate(counts)))
                experts[record.stack, layer] = record.experts
    return {key: [c[index] for index in range(experts[key])] for key, c in summed.items() if any(c.values())}


def _records(folder: Path) -> list[Any]:
    (path,) = folder.rglob("metrics.jsonl")
    return list(read_metrics(path))
