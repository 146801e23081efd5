"""What the training time covers in each host, by a clock that only the parts of the loop move.

Every part of the loop advances the clock by its own power of ten, so that the digits of ``train_perf/seconds`` tell how
often each was inside the window.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.clock import Clock
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from areal_callbacks.monitors.throughput import monitor as throughput
from areal_callbacks.monitors.throughput.timer import WallTimer
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, MOVE, DATA, EVALUATION = (10**place for place in range(7))
STEPS, ACCUMULATE = 3, 2


CLOCK = Clock()


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        CLOCK.advance(BACKWARD)
        return gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 1)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        CLOCK.advance(FORWARD if self.training else EVALUATION)
        return {"loss": SlowBackward.apply(self.table(input_ids).sum())}

    def zero_grad(self, set_to_none: bool = True) -> None:
        CLOCK.advance(ZERO_GRAD)
        super().zero_grad(set_to_none)


class Optimizer(torch.optim.SGD):
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None if closure is None else closure()
        CLOCK.advance(OPTIMIZER)
        super().step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        CLOCK.advance(ZERO_GRAD)
        super().zero_grad(set_to_none)


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return STEPS * ACCUMULATE

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        CLOCK.advance(DATA)
        return {"input_ids": torch.zeros(5, dtype=torch.long)}


class Batch(dict[str, Tensor]):
    """A batch that takes a while to be moved."""

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        CLOCK.advance(MOVE)
        return Batch({name: tensor.to(*args, **kwargs) for name, tensor in self.items()})


def collate(rows: list[dict[str, Tensor]]) -> Batch:
    return Batch({name: torch.stack([row[name] for row in rows]) for name in rows[0]})


def parts() -> tuple[Model, Optimizer, DataLoader[dict[str, Tensor]]]:
    model = Model()
    return model, Optimizer(model.parameters(), 0.1), DataLoader(Rows(), 1, collate_fn=collate)


def transformers(folder: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    model, optimizer, _ = parts()
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=STEPS,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="no",
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    callbacks = [AReaLMetricsCallback(output_dir=str(folder), report=False)]
    pair = (optimizer, scheduler)
    data = {"train_dataset": Rows(), "eval_dataset": Rows(), "data_collator": collate}
    Trainer(model, arguments, **data, optimizers=pair, callbacks=callbacks).train()


def lightning(folder: Path) -> None:
    import lightning.pytorch as pl

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer, _ = parts()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> Any:
            return self.optimizer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers
        trainer = pl.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            max_steps=STEPS,
            accumulate_grad_batches=ACCUMULATE,
            val_check_interval=ACCUMULATE,
            log_every_n_steps=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[AReaLMetricsCallback(output_dir=str(folder), report=False)],
        )
        trainer.fit(Module(), DataLoader(Rows(), 1, collate_fn=collate), DataLoader(Rows(), 8, collate_fn=collate))


def fabric(folder: Path) -> None:
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    callback = AReaLMetricsCallback(output_dir=str(folder), report=False)
    host = Fabric(accelerator="cpu", devices=1, callbacks=[callback])
    plain, plain_optimizer, loader = parts()
    model, optimizer = host.setup(plain, plain_optimizer)
    loader = host.setup_dataloaders(loader)
    for index, batch in enumerate(loader):
        host.backward(model(**batch)["loss"])
        if (index + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
            evaluate(model, batch)
    callback.close()


def accelerate(folder: Path) -> None:
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    enable(accelerator, output_dir=str(folder), report=False)
    model, optimizer, loader = accelerator.prepare(*parts())
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            evaluate(model, batch)
            accelerator.log({"step": 1.0})
    accelerator.end_training()


def loop(folder: Path) -> None:
    from areal_callbacks.integrations.fsdp import track

    model, optimizer, loader = parts()
    with track(model, optimizer, output_dir=str(folder), report=False) as metrics:
        for index, batch in enumerate(loader):
            with metrics.step():
                model(**batch)["loss"].backward()
                if (index + 1) % ACCUMULATE == 0:
                    optimizer.step()
            if (index + 1) % ACCUMULATE == 0:
                optimizer.zero_grad()
                evaluate(model, batch)
                metrics.export(index)


def evaluate(model: nn.Module, batch: dict[str, Tensor]) -> None:
    model.eval()
    with torch.no_grad():
        model(**batch)
    model.train()


WORK = ACCUMULATE * (FORWARD + BACKWARD) + OPTIMIZER
ALL = WORK + ACCUMULATE * MOVE + ZERO_GRAD
WINDOWS = {transformers: ALL, lightning: ALL, fabric: ALL, accelerate: ALL, loop: WORK}


TRAILING = {fabric: ZERO_GRAD, accelerate: ZERO_GRAD}
"""After the last step: nothing is trained any more, so that no row has it."""

FETCHED = STEPS * ACCUMULATE - 1
"""Batches that were waited for: the first one comes before any training."""
WAITS = {transformers: FETCHED, lightning: FETCHED, accelerate: FETCHED, fabric: STEPS, loop: STEPS}
"""A gap in which the loop itself evaluates is left out with the fetching in it; Accelerate fetches ahead."""


@pytest.mark.slow
@pytest.mark.parametrize("host", WINDOWS, ids=lambda host: host.__name__)
def test_the_window_holds_what_the_documentation_says(host, tmp_path, monkeypatch):
    monkeypatch.setattr(throughput, "make_timer", lambda device: WallTimer(clock=CLOCK))
    CLOCK.now = 0.0
    host(tmp_path)
    read = read_metrics(tmp_path / "metrics.jsonl")
    records = [record.metrics for record in read if isinstance(record, MetricsRecord)]
    assert sum(row["train_perf/seconds"] for row in records) == STEPS * WINDOWS[host] - TRAILING.get(host, 0)
    assert sum(row.get("train_perf/data_wait_seconds", 0.0) for row in records) == WAITS[host] * DATA
    assert CLOCK.now > STEPS * (WINDOWS[host] + ACCUMULATE * DATA + EVALUATION) - 1
    assert {row["timeperf/optimizer_step"] for row in records} == {OPTIMIZER}
