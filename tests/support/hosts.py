"""The same training under every host: the same tiny model, the same rows, the same number of steps.

The learning rate is zero unless a test asks for another, so that the routing depends on the rows alone, however a host
deals them out. Each host returns the model that it trained, measured or not.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.tiny_trainer import Sequences, moe_model
from torch import nn
from torch.utils.data import DataLoader

ROWS, BATCH, ACCUMULATE, EPOCHS = 16, 2, 2, 2
LEARNING_RATE = 0.0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rows() -> Sequences:
    return Sequences(ROWS)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def transformers(folder: str, *, measure: bool = True) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        num_train_epochs=EPOCHS,
        logging_steps=3,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    callbacks = [AReaLMetricsCallback(output_dir=folder, report=False)] if measure else []
    model = moe_model()
    Trainer(model, arguments, train_dataset=rows(), callbacks=callbacks).train()
    return model


def lightning(folder: str, *, measure: bool = True) -> nn.Module:
    import lightning.pytorch as pl

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = moe_model()

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        trainer = pl.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            devices=world_size(),
            strategy="ddp" if world_size() > 1 else "auto",
            max_epochs=EPOCHS,
            accumulate_grad_batches=ACCUMULATE,
            log_every_n_steps=3,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[AReaLMetricsCallback(output_dir=folder, report=False)] if measure else [],
        )
        module = Module()
        trainer.fit(module, DataLoader(rows(), BATCH))
    return module.model


def fabric(folder: str, *, measure: bool = True) -> nn.Module:
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLFabricCallback

    callback = AReaLFabricCallback(output_dir=folder, report=False)
    host = Fabric(
        accelerator="cpu",
        devices=world_size(),
        strategy="ddp" if world_size() > 1 else "auto",
        callbacks=[callback] if measure else [],
    )
    if world_size() > 1:
        host.launch()
    plain = moe_model()
    model, optimizer = host.setup(plain, optimizer_of(plain))
    loader = host.setup_dataloaders(DataLoader(rows(), BATCH))
    for _ in range(EPOCHS):
        for index, batch in enumerate(loader):
            host.backward(model(**batch).loss)
            if (index + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
    callback.close()
    return plain


def accelerate(folder: str, *, measure: bool = True) -> nn.Module:
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    if measure:
        enable(accelerator, output_dir=folder, report=False)
    plain = moe_model()
    model, optimizer, loader = accelerator.prepare(plain, optimizer_of(plain), DataLoader(rows(), BATCH))
    for _ in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.log({"loss": 0.0})
    accelerator.end_training()
    return plain


def loop(folder: str, *, measure: bool = True) -> nn.Module:
    from areal_callbacks.integrations.fsdp import track

    plain = model = moe_model()
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of(model)

    def train_step(index: int, batch: dict[str, Any]) -> None:
        model(**batch).loss.backward()
        if (index // world + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()

    dealt = [pair for pair in enumerate(DataLoader(rows(), BATCH)) if pair[0] % world == rank]
    batches = dealt * EPOCHS
    if not measure:
        for index, batch in batches:
            train_step(index, batch)
        return plain
    with track(model, optimizer, output_dir=folder, report=False) as metrics:
        for number, (index, batch) in enumerate(batches, start=1):
            with metrics.step():
                train_step(index, batch)
            if number % (len(batches) // EPOCHS) == 0:
                metrics.export(number // ACCUMULATE)
    return plain


HOSTS: dict[str, Callable[..., nn.Module]] = {
    host.__name__: host for host in (transformers, lightning, fabric, accelerate, loop)
}


def train(group: Any, name: str, folder: str) -> None:
    """Train under one host in this process."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    HOSTS[name](folder)
