"""Nested trainers, checkpoints that an exception writes, remote folders, callbacks that raise before ours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from support.tiny_lightning import Module, loader, metrics_rows, tokens, trainer
from torch import nn

from areal_callbacks.integrations.lightning import AReaLFabricCallback, AReaLMetricsCallback
from areal_callbacks.safety.hooks import Hook


class RaisesAt(Module):
    def __init__(self, batch: int) -> None:
        super().__init__()
        self._at = batch

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if batch_idx == self._at:
            raise ValueError("planted")
        return loss


def test_a_checkpoint_that_is_written_on_an_exception_has_whole_totals(tmp_path: Path) -> None:
    callback = AReaLMetricsCallback(report=False)
    keep = OnExceptionCheckpoint(tmp_path / "kept")
    host = trainer(tmp_path, callback, keep, max_epochs=1, log_every_n_steps=10, enable_checkpointing=True)
    with pytest.raises(ValueError, match="planted"):
        host.fit(RaisesAt(3), loader(8))
    (path,) = (tmp_path / "kept").glob("*.ckpt")
    states = torch.load(path, weights_only=False)["callbacks"]
    (totals,) = [state["totals"] for state in states.values() if "totals" in state]
    assert totals["optimizer_steps"] == 3
    assert totals["tokens"] == tokens(8)  # all four batches went through the model
    assert totals["seconds"] > 0


class TrainsInside(Callback):
    """Another trainer with the same callback object, after the first batch."""

    def __init__(self, folder: Path, callback: AReaLMetricsCallback) -> None:
        self._folder, self._callback = folder, callback

    def on_train_batch_end(self, host: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            trainer(self._folder, self._callback, max_epochs=1, log_every_n_steps=1).fit(Module(), loader(4))


def test_a_trainer_inside_a_training_leaves_the_outer_measurement_alone(tmp_path: Path) -> None:
    callback = AReaLMetricsCallback(report=False)
    inside = TrainsInside(tmp_path / "inner", callback)
    trainer(tmp_path / "outer", callback, inside, max_epochs=1, log_every_n_steps=1).fit(Module(), loader(8))
    for folder, rows in (("inner", 4), ("outer", 8)):
        assert sum(row.metrics["train_perf/tokens"] for row in metrics_rows(tmp_path / folder)) == tokens(rows)
    assert callback.session is None


class Slotted(Callback):
    __slots__ = ()

    def on_exception(self, host: Any, module: Any, error: BaseException) -> None:
        raise RuntimeError("planted in on_exception")


class Raising(Callback):
    def on_exception(self, host: Any, module: Any, error: BaseException) -> None:
        raise RuntimeError("planted in on_exception")


@pytest.mark.parametrize("kind", [Raising, Slotted])
def test_an_earlier_callback_whose_own_handler_raises_leaves_nothing_of_ours(
    kind: type[Callback], tmp_path: Path
) -> None:
    callback, module = AReaLMetricsCallback(report=False), RaisesAt(1)
    with pytest.raises(RuntimeError, match="planted in on_exception"):
        trainer(tmp_path, kind(), callback, max_epochs=1).fit(module, loader(8))
    assert callback.session is None or callback.session.is_closed
    hooks = [hook for part in module.modules() for hook in part._forward_hooks.values()]
    assert not any(isinstance(hook, Hook) for hook in hooks)
    assert kind.on_exception.__name__ == "on_exception"


def test_a_remote_root_gets_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    callback = AReaLMetricsCallback(report=False)
    host = trainer(tmp_path, callback, max_epochs=1, logger=False, default_root_dir="memory://bucket/run")
    host.fit(Module(), loader(4))
    assert len(list(tmp_path.glob("areal_metrics/*/metrics.jsonl"))) == 1
    assert not (tmp_path / "memory:").exists()


def test_a_csv_logger_of_fabric_finds_an_empty_folder(tmp_path: Path) -> None:
    callback = AReaLFabricCallback(report=False)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback], loggers=CSVLogger(tmp_path))
    model, optimizer = fabric.setup(plain := nn.Linear(2, 1), torch.optim.SGD(plain.parameters(), 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            fabric.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            fabric.log("loss", 0.0, step)
        callback.close()
