"""What is read off Lightning itself, under either of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger
from support.readback import messages
from support.tiny_lightning import Module, csv_rows, loader, tokens, trainer
from support.tiny_trainer import moe_model
from support.tiny_words import outcome_of, weights_of

from areal_callbacks.integrations.lightning import AReaLFabricCallback, AReaLMetricsCallback


def test_the_other_name_of_lightning_works_too(tmp_path):
    import pytorch_lightning as other

    class Other(other.LightningModule):
        training_step = Module.training_step
        configure_optimizers = Module.configure_optimizers
        learning_rate = 0.01

        def __init__(self):
            super().__init__()
            self.model = Module().model

    host = other.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        logger=other.loggers.CSVLogger(tmp_path),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[AReaLMetricsCallback(report=False)],
    )
    host.fit(Other(), loader())
    assert sum(row["train_perf/tokens"] for row in csv_rows(tmp_path)) == tokens()


class NoPath(Logger):
    """Keeps its rows, and has no folder that a path could be made of."""

    def __init__(self, place: Any) -> None:
        super().__init__()
        self.place = place
        self.rows: list[dict[str, float]] = []

    def _tell(self) -> Any:
        if isinstance(self.place, Exception):
            raise self.place
        return self.place

    save_dir = log_dir = property(_tell)
    name = version = "none"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(metrics)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


PLACES = [5, object(), RuntimeError("not connected"), "", None]


def train_under_trainer(logger: NoPath, measure: bool) -> list[float]:
    torch.manual_seed(0)
    module = Module()
    ours = [AReaLMetricsCallback(report=False)] if measure else []
    trainer(Path(), *ours, logger=logger, max_epochs=1).fit(module, loader(4))
    return weights_of(module)


def train_under_fabric(logger: NoPath, measure: bool) -> list[float]:
    callback = AReaLFabricCallback(report=False)
    fabric = Fabric(accelerator="cpu", devices=1, loggers=[logger], callbacks=[callback] if measure else [])
    plain = moe_model()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for batch in loader(4):
        fabric.backward(model(**batch).loss)
        optimizer.step()
        fabric.log("loss", 0.0)
    callback.close()
    return weights_of(plain)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: type(place).__name__)
@pytest.mark.parametrize("train", [train_under_trainer, train_under_fabric])
def test_a_logger_without_a_folder(
    train: Any, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    logger, expected = NoPath(place), outcome_of(train, NoPath(place), False)
    assert outcome_of(train, logger, True) == expected
    if isinstance(expected, str):  # the Trainer itself asks it
        return
    assert sum(row.get("train_perf/tokens", 0) for row in logger.rows) == tokens(4)
    assert len(messages(caplog)) <= 1
    (file,) = tmp_path.rglob("metrics.jsonl")
    assert len(file.read_text().splitlines()) > 2
