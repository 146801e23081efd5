"""A LightningModule around the tiny mixture of experts."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from support.tiny_trainer import moe_model
from torch import Tensor


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = moe_model()

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)
