"""Sessions that write into a folder, steps of a tiny model in them, and the rows that they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from areal_callbacks import MetricsSession
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics


def open_session(folder: Path, **options: Any) -> MetricsSession:
    """Writes ``metrics.jsonl`` into the folder and nothing else."""
    return MetricsSession(output_dir=folder, report=False, **options)


def read_rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Step and numbers of every row in their order; none if there is no file."""
    file = folder / "metrics.jsonl"
    records = read_metrics(file) if file.exists() else ()
    return [(record.step, record.metrics) for record in records if isinstance(record, MetricsRecord)]


def batch(*lengths: int) -> dict[str, Tensor]:
    """Random rows of these lengths, padded on the right."""
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, 64, (len(lengths), width), generator=torch.Generator().manual_seed(sum(lengths)))
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids}


def step(session: MetricsSession, model: nn.Module, optimizer: Any, *lengths: int) -> None:
    """Train on rows of these lengths, once."""
    session.begin()
    model(**batch(*lengths)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    session.end()
