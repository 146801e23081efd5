"""A model whose ``config`` raises trains the same in every host, and costs nothing but its FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.readback import messages
from support.tiny_accelerate import make_accelerator
from support.tiny_lightning import trainer
from support.tiny_trainer import make_trainer
from support.tiny_words import Rows, Words, batches, weights_of
from torch.utils.data import DataLoader

from areal_callbacks.integrations import lightning, transformers
from areal_callbacks.integrations.accelerate import enable
from areal_callbacks.integrations.fsdp import track
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

pytestmark = pytest.mark.filterwarnings("ignore")  # of the hosts


class NotSetUp(Words):
    @property
    def config(self) -> Any:
        raise RuntimeError("call setup() first")


class Loss(torch.nn.Module):
    """Transformers asks the outermost module for its configuration, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = NotSetUp()

    def forward(self, input_ids: torch.Tensor) -> Any:
        return {"loss": self.words(input_ids)}


def loop(folder: Path, measure: bool) -> list[float]:
    model = NotSetUp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = track(model, optimizer, output_dir=folder, report=False) if measure else None
    for batch in batches():
        model(**batch).backward()
        optimizer.step()
    if run is not None:
        run.export(4)
        run.close()
    return weights_of(model)


def accelerate(folder: Path, measure: bool) -> list[float]:
    accelerator = make_accelerator(folder)
    if measure:
        enable(accelerator, output_dir=folder, report=False)
    plain = NotSetUp()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for batch in batches():
        accelerator.backward(model(**batch))
        optimizer.step()
    accelerator.end_training()
    return weights_of(plain)


def in_lightning(folder: Path, measure: bool) -> list[float]:
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.words = NotSetUp()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.words(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Net()
    callbacks = [lightning.AReaLMetricsCallback(output_dir=folder, report=False)] if measure else []
    trainer(folder, *callbacks, logger=False, max_epochs=1).fit(module, DataLoader(Rows(), 2))
    return weights_of(module)


def in_transformers(folder: Path, measure: bool) -> list[float]:
    model = Loss()
    callbacks = [transformers.AReaLMetricsCallback(output_dir=str(folder), report=False)] if measure else []
    host = make_trainer(folder, model=model, data=Rows(), callbacks=callbacks)
    host.train()
    return weights_of(model)


HOSTS = [loop, accelerate, in_lightning, in_transformers]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__.removeprefix("in_"))
def test_it_ends_as_without_us(host: Any, tmp_path: Path, caplog: Any) -> None:
    assert host(tmp_path / "with", True) == host(tmp_path / "without", False)
    (message,) = messages(caplog)
    assert "call setup() first" in message
    records = [one for one in read_metrics(tmp_path / "with" / "metrics.jsonl") if isinstance(one, MetricsRecord)]
    assert sum(record.metrics["train_perf/tokens"] for record in records) == 40
    assert sum(record.metrics["train_perf/optimizer_steps"] for record in records) > 0
