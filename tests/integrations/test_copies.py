"""Trainers and accelerators can be copied and pickled with us as without us, while they train and afterwards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from support.readback import messages
from support.tiny_accelerate import make_accelerator
from support.tiny_lightning import trainer as lightning_trainer
from support.tiny_trainer import make_trainer, metric_records, our_rows
from support.tiny_words import ROWS, WIDTH, Rows, Words, batches, outcome_of, weights_of
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from areal_callbacks.integrations import lightning, transformers
from areal_callbacks.integrations.accelerate import enable


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPY: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickled]


class Duplicates:
    """Copies an object in every way when it is asked to, and keeps the copies."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def make(self, host: Any) -> None:
        self.kept += [outcome_of(make, host) for make in COPY]

    @property
    def kinds(self) -> list[str]:
        """What came out; the exception where the host alone cannot be copied."""
        return [kept if isinstance(kept, str) else type(kept).__name__ for kept in self.kept]

    def __reduce__(self) -> Any:
        return Duplicates, ()


class Loss(Words):
    def forward(self, input_ids: torch.Tensor) -> Any:
        return {"loss": super().forward(input_ids)}


class CopiesTheTrainer(TrainerCallback):
    def __init__(self, duplicates: Duplicates) -> None:
        self.duplicates = duplicates
        self.host: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            self.duplicates.make(self.host)


def train_transformers(folder: Path, measure: bool) -> tuple[Any, Duplicates]:
    duplicates = Duplicates()
    copies = CopiesTheTrainer(duplicates)
    ours = [transformers.AReaLMetricsCallback(report=False)] if measure else []
    copies.host = host = make_trainer(folder, model=Loss(), data=Rows(), callbacks=[*ours, copies], num_train_epochs=2)
    host.train()
    duplicates.make(host)
    return host.model, duplicates


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.words = Words()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.words(**batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class CopiesLightning(Callback):
    def __init__(self, duplicates: Duplicates) -> None:
        self.duplicates = duplicates

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.duplicates.make(trainer)
            self.duplicates.make(pl_module)


def train_lightning(folder: Path, measure: bool) -> tuple[Any, Duplicates]:
    duplicates, module = Duplicates(), Net()
    ours = [lightning.AReaLMetricsCallback(report=False, output_dir=folder / "areal_metrics")] if measure else []
    host = lightning_trainer(folder, *ours, CopiesLightning(duplicates), logger=False, max_epochs=1)
    host.fit(module, DataLoader(Rows(), 2))
    duplicates.make(host)
    duplicates.make(module)
    return module, duplicates


def train_accelerate(folder: Path, measure: bool) -> tuple[Any, Duplicates]:
    duplicates = Duplicates()
    accelerator = make_accelerator(folder)
    if measure:
        enable(accelerator, report=False)
    plain = Words()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for index, batch in enumerate(batches()):
        accelerator.backward(model(**batch))
        optimizer.step()
        optimizer.zero_grad()
        if index == 1:
            for one in (accelerator, optimizer, model):
                duplicates.make(one)
    accelerator.end_training()
    for one in (accelerator, optimizer, model):
        duplicates.make(one)
    return plain, duplicates


HOSTS = [train_transformers, train_lightning, train_accelerate]


pytestmark = pytest.mark.filterwarnings("ignore")  # of the hosts


@pytest.mark.parametrize("train", HOSTS, ids=lambda train: train.__name__.removeprefix("train_"))
def test_what_can_be_copied_without_us_can_be_copied_with_us(train: Any, tmp_path: Path, caplog: Any) -> None:
    expected_model, expected = train(tmp_path / "without", False)
    model, duplicates = train(tmp_path / "with", True)
    assert duplicates.kinds == expected.kinds
    assert {"RecordingTrainer", "Trainer", "Accelerator"} & set(expected.kinds)
    assert weights_of(model) == weights_of(expected_model)
    assert messages(caplog) == []


@pytest.mark.parametrize("make", COPY, ids=lambda make: make.__name__)
def test_a_copied_accelerator_is_not_measured(make: Any, tmp_path: Path) -> None:
    accelerator = make_accelerator(tmp_path)
    enable(accelerator, every=100, report=False)
    plain = Words()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))

    def train(accelerator: Any, model: Any, optimizer: Any) -> None:
        for batch in batches():
            accelerator.backward(model(**batch))
            optimizer.step()

    train(accelerator, model, optimizer)
    if make is not copy.copy:  # which shares everything
        train(*make((accelerator, model, optimizer)))
    accelerator.end_training()
    (row,) = [record.metrics for record in metric_records(tmp_path)]
    assert row["train_perf/tokens"] == ROWS * WIDTH
    assert row["train_perf/optimizer_steps"] == len(batches())


class CopiesOurs(TrainerCallback):
    """Copies the callback that measures, in the middle of a training."""

    def __init__(self, ours: transformers.AReaLMetricsCallback) -> None:
        self.ours = ours
        self.copies: list[Any] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        assert self.ours.session is not None
        self.copies += [make(self.ours) for make in COPY]


def test_a_copied_callback_measures_a_trainer_of_its_own(tmp_path: Path, caplog: Any) -> None:
    copies = CopiesOurs(transformers.AReaLMetricsCallback(report=False, every=2, flops=False))
    make_trainer(tmp_path, model=Loss(), data=Rows(), callbacks=[copies.ours, copies]).train()
    assert len(copies.copies) == 2 * len(COPY)
    for number, callback in enumerate(copies.copies):
        assert callback.session is None
        assert callback.config == copies.ours.config
        host = make_trainer(tmp_path / str(number), model=Loss(), data=Rows(), callbacks=[callback])
        host.train()
        assert our_rows(host)[-1]["train_perf/total_tokens"] == ROWS * WIDTH
    assert messages(caplog) == []
