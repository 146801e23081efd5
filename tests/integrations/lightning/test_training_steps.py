"""Training steps of any form: Lightning reads their signatures to choose what it hands over, also through our wrap."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from support.readback import messages
from support.tiny_lightning import metrics_rows, trainer
from support.tiny_words import ROWS, WIDTH, Rows, Words, weights_of
from torch.utils.data import DataLoader

from areal_callbacks.integrations.lightning import AReaLMetricsCallback


class Net(LightningModule):
    """Notes what its training step was given."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Words()
        self.given: list[Any] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def of_batch(self, batch):
    self.given.append(sorted(batch))
    return self.words(**batch)


def of_batch_and_index(self, batch, batch_idx):
    self.given.append((sorted(batch), batch_idx))
    return self.words(**batch)


def of_keywords(self, batch, *, scale=2.0):
    self.given.append((sorted(batch), scale))
    return self.words(**batch) * scale


def of_iterator(self, dataloader_iter):
    batch, index, _ = next(dataloader_iter)
    self.given.append((sorted(batch), index))
    return self.words(**batch)


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return 2 * function(*args, **kwargs)

    return wrapper


DECORATORS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "plain": lambda function: function,
    "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
    "enable_grad": torch.enable_grad(),
    "record_function": torch.autograd.profiler.record_function("step"),
    "wraps": doubled,
}
STEPS = [of_batch, of_batch_and_index, of_keywords, of_iterator]


def train(folder: Path, kind: type[Net], *, measure: bool = True) -> tuple[list[float], list[Any]]:
    module = kind()
    callbacks = [AReaLMetricsCallback(report=False, output_dir=folder)] if measure else []
    trainer(folder, *callbacks, logger=False, max_epochs=1).fit(module, DataLoader(Rows(), 2))
    return weights_of(module), module.given


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_it_is_given_what_it_asks_for_and_counted(decorator, step, tmp_path, caplog):
    kind = type("Decorated", (Net,), {"training_step": DECORATORS[decorator](step)})
    expected = train(tmp_path / "without", kind, measure=False)
    assert train(tmp_path / "with", kind) == expected
    assert len(expected[1]) == ROWS // 2
    rows = [record.metrics for record in metrics_rows(tmp_path / "with")]
    assert sum(row["train_perf/optimizer_steps"] for row in rows) == ROWS // 2
    if step is of_iterator:  # the batch is inside, and no model that takes inputs by keyword
        (message,) = messages(caplog)
        assert "token_count_fn" in message
    else:
        assert sum(row["train_perf/tokens"] for row in rows) == ROWS * WIDTH
        assert messages(caplog) == []


def refuse(name: str) -> None:
    if name == "training_step":
        raise AttributeError("training_step is final")


class Sealed(Net):
    """Refuses another training step of its own."""

    training_step = of_batch

    def __setattr__(self, name: str, value: Any) -> None:
        refuse(name)
        super().__setattr__(name, value)


class Final(type(Net)):  # type: ignore[misc]
    """Of classes that refuse it."""

    def __setattr__(cls, name: str, value: Any) -> None:
        refuse(name)
        super().__setattr__(name, value)


class SealedClass(Net, metaclass=Final):
    training_step = of_batch


def test_a_module_that_refuses_another_training_step_is_measured(tmp_path, caplog):
    """Nothing of it is set: its class is wrapped."""
    expected = train(tmp_path / "without", Sealed, measure=False)
    assert train(tmp_path / "with", Sealed) == expected
    assert sum(record.metrics["train_perf/tokens"] for record in metrics_rows(tmp_path / "with")) == ROWS * WIDTH
    assert messages(caplog) == []


def test_a_module_whose_training_step_cannot_be_set_trains_as_without_us(tmp_path, caplog):
    expected = train(tmp_path / "without", SealedClass, measure=False)
    assert train(tmp_path / "with", SealedClass) == expected
    cause, *costs = messages(caplog)
    assert "training_step is final" in cause
    assert [cost.split(" failed on a rank")[0] for cost in costs] == ["'throughput'", "'moe_balance'"]
