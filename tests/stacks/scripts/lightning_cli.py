"""A LightningCLI program: ``lightning_cli.py fit --config FILE``."""

import os

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from loops import load, loss_of


class Language(LightningModule):
    def __init__(self, model: str = os.environ["MODEL"], rate: float = 0.1) -> None:
        super().__init__()
        self.inner, _ = load(model)
        self.rate = rate

    def training_step(self, batch, batch_idx):
        return loss_of(self.inner, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.rate)


class Text(LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(load(os.environ["MODEL"])[1], batch_size=None)


cli = LightningCLI(Language, Text)
cli.model.inner.save_pretrained(cli.trainer.default_root_dir)
