"""Optimizers that are no torch class, or not quite one: every host that trains with them trains the same with us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.odd_optimizers import Uninitialised, Untorched
from support.readback import messages
from support.tiny_accelerate import make_accelerator
from support.tiny_lightning import trainer
from support.tiny_words import Rows, Words, batches, outcome_of, weights_of
from torch.utils.data import DataLoader

from areal_callbacks.integrations.accelerate import enable
from areal_callbacks.integrations.fsdp import track
from areal_callbacks.integrations.lightning import AReaLFabricCallback, AReaLMetricsCallback

Train = Callable[[Path, type[Any], bool], list[float]]


def loop(folder: Path, kind: type[Any], measure: bool) -> list[float]:
    model = Words()
    optimizer = kind(model.parameters())

    def step(batch: Any) -> None:
        model(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    if measure:
        with track(model, optimizer, output_dir=folder, report=False) as run:
            for batch in batches():
                with run.step():
                    step(batch)
            assert run.export(4).metrics["train_perf/tokens"] == 40
    else:
        for batch in batches():
            step(batch)
    return weights_of(model)


def accelerate(folder: Path, kind: type[Any], measure: bool) -> list[float]:
    accelerator = make_accelerator(folder)
    if measure:
        enable(accelerator, report=False)
    plain = Words()
    model, optimizer = accelerator.prepare(plain, kind(plain.parameters()))
    for batch in batches():
        accelerator.backward(model(**batch))
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    return weights_of(plain)


def lightning(folder: Path, kind: type[Any], measure: bool) -> list[float]:
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.words = Words()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.words(**batch)

        def configure_optimizers(self) -> Any:
            return kind(self.parameters())

    module = Net()
    callbacks = [AReaLMetricsCallback(report=False, output_dir=folder)] if measure else []
    trainer(folder, *callbacks, logger=False, max_epochs=1).fit(module, DataLoader(Rows(), 2))
    return weights_of(module)


def fabric(folder: Path, kind: type[Any], measure: bool) -> list[float]:
    from lightning.fabric import Fabric

    callback = AReaLFabricCallback(report=False, output_dir=folder)
    host = Fabric(accelerator="cpu", devices=1, callbacks=[callback] if measure else [])
    plain = Words()
    model, optimizer = host.setup(plain, kind(plain.parameters()))
    for batch in batches():
        host.backward(model(**batch))
        optimizer.step()
        optimizer.zero_grad()
    callback.close()
    return weights_of(plain)


def transformers(folder: Path, kind: type[Any], measure: bool) -> list[float]:
    from support.tiny_trainer import arguments, fresh_accelerator
    from transformers import Trainer

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback as Callback

    class Net(Words):
        def forward(self, input_ids: Any) -> Any:
            return {"loss": super().forward(input_ids)}

    model = Net()
    fresh_accelerator()
    Trainer(
        model,
        arguments(folder, max_grad_norm=0.0, lr_scheduler_type="constant"),
        train_dataset=Rows(),
        callbacks=[Callback(report=False)] if measure else [],
        optimizers=(kind(model.parameters()), None),
    ).train()
    return weights_of(model)


HOSTS: list[Train] = [loop, accelerate, lightning, fabric, transformers]


@pytest.mark.filterwarnings("ignore")  # of the hosts, about such optimizers
@pytest.mark.parametrize("kind", [Untorched, Uninitialised], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_it_ends_as_without_us(host: Train, kind: type[Any], tmp_path: Path, caplog: Any) -> None:
    expected = outcome_of(host, tmp_path / "without", kind, False)
    assert outcome_of(host, tmp_path / "with", kind, True) == expected
    assert isinstance(expected, list) or host is transformers  # whose scheduler asks for a torch class
    assert len(messages(caplog)) <= 1
