"""A tiny Qwen3-MoE as a LightningModule, and quiet Trainers for it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from support.tiny_trainer import Sequences, moe_model
from support.versions import takes
from torch import Tensor
from torch.utils.data import DataLoader

from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

TRUSTING = {"weights_only": False} if takes(Trainer.fit, "weights_only") else {}
"""For checkpoints of our own that hold more than weights."""

ROWS = 14
"""Seven batches of two: with two to a step, the last window of an epoch is incomplete."""


class Module(LightningModule):
    """Automatic optimisation over a Hugging Face model."""

    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.model = moe_model()
        self.learning_rate = learning_rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), self.learning_rate)


def trainer(folder: Path, *callbacks: Any, **overrides: Any) -> Trainer:
    values: dict[str, Any] = {
        "default_root_dir": folder,
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "logger": CSVLogger(folder),
        "log_every_n_steps": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": list(callbacks),
    }
    return Trainer(**{**values, **overrides})


def csv_rows(folder: Path) -> list[dict[str, float]]:
    """What the CSV logger wrote, without empty cells."""
    (path,) = folder.rglob("metrics.csv")
    with path.open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def loader(rows: int = ROWS) -> DataLoader[dict[str, Tensor]]:
    """Batches of two rows."""
    return DataLoader(Sequences(rows), 2)


def tokens(rows: int = ROWS) -> int:
    """In one epoch of :func:`loader`."""
    return sum(int(Sequences(rows)[index]["attention_mask"].sum()) for index in range(rows))


def metrics_rows(folder: Path) -> list[MetricsRecord]:
    """What we wrote below a folder."""
    (path,) = folder.rglob("metrics.jsonl")
    return [record for record in read_metrics(path) if isinstance(record, MetricsRecord)]
