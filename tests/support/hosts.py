"""The same training under every host: the same tiny model, the same rows, the same number of steps.

The learning rate is zero, so that the routing depends on the rows alone, however a host deals them out.
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


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rows() -> Sequences:
    return Sequences(ROWS)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def transformers(folder: str) -> None:
    from transformers import Trainer, TrainingArguments

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        num_train_epochs=EPOCHS,
        logging_steps=3,
        learning_rate=0.0,
        optim="sgd",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    callback = AReaLMetricsCallback(output_dir=folder, report=False)
    Trainer(moe_model(), arguments, train_dataset=rows(), callbacks=[callback]).train()


def lightning(folder: str) -> None:
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
            callbacks=[AReaLMetricsCallback(output_dir=folder, report=False)],
        )
        trainer.fit(Module(), DataLoader(rows(), BATCH))


def fabric(folder: str) -> None:
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    callback = AReaLMetricsCallback(output_dir=folder, report=False)
    host = Fabric(
        accelerator="cpu",
        devices=world_size(),
        strategy="ddp" if world_size() > 1 else "auto",
        callbacks=[callback],
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


def accelerate(folder: str) -> None:
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
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


def loop(folder: str) -> None:
    from areal_callbacks.integrations.fsdp import track

    model: nn.Module = moe_model()
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of(model)
    with track(model, optimizer, output_dir=folder, report=False) as metrics:
        step = 0
        for _ in range(EPOCHS):
            for index, batch in enumerate(DataLoader(rows(), BATCH)):
                if index % world != rank:
                    continue
                with metrics.step():
                    model(**batch).loss.backward()
                    if (index // world + 1) % ACCUMULATE == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                        step += 1
            metrics.export(step)


HOSTS: dict[str, Callable[[str], None]] = {
    host.__name__: host for host in (transformers, lightning, fabric, accelerate, loop)
}


def train(group: Any, name: str, folder: str) -> None:  # noqa: ARG001 - the signature of a job of several ranks
    """Train under one host in this process."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    HOSTS[name](folder)
