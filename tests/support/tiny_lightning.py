"""A tiny Qwen3-MoE as a LightningModule, and quiet Trainers for it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from support.tiny_trainer import moe_model
from torch import Tensor


class Module(LightningModule):
    """Automatic optimisation over a Hugging Face model."""

    def __init__(self, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.model = moe_model()
        self.learning_rate = learning_rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.model(**batch).loss
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
