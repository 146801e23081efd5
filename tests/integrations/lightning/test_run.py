"""One training of a real Lightning Trainer: what is counted, and in whose rows it arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from support.readback import tensorboard_rows
from support.tiny_lightning import ROWS, Module, csv_rows, loader, metrics_rows, tokens, trainer
from support.tiny_trainer import Sequences
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.lightning import AReaLMetricsCallback


def test_evaluation_and_the_sanity_check_do_not_count_and_an_incomplete_window_does(tmp_path):
    callback = AReaLMetricsCallback(report=False)
    trainer(tmp_path, callback, accumulate_grad_batches=2, val_check_interval=3).fit(Module(), loader(), loader(4))
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert sum(row["train_perf/tokens"] for row in rows) == 2 * tokens()
    assert sum(row["train_perf/optimizer_steps"] for row in rows) == 2 * 4
    assert rows[-1]["train_perf/total_tokens"] == 2 * tokens()
    assert not any("train_perf/tokens" in row for row in csv_rows(tmp_path) if "val_loss" in row)
    routed = [row for row in rows if "moe_balance/layer_1/max_over_ideal" in row]
    assert len(routed) == len(rows)


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_a_log_interval_that_does_not_divide_the_steps_loses_nothing(interval, tmp_path):
    trainer(tmp_path, AReaLMetricsCallback(report=False), log_every_n_steps=interval).fit(Module(), loader())
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert sum(row["train_perf/tokens"] for row in rows) == 2 * tokens()
    assert len(rows) == -(-2 * ROWS // 2 // interval)


def test_the_numbers_share_the_row_of_the_loss_and_are_exact(tmp_path):
    stats_tracker.get("exact").scalar(value=50331651.0)  # float32 would make it 50331652
    trainer(tmp_path, AReaLMetricsCallback(report=False, every=2), log_every_n_steps=2).fit(Module(), loader())
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert rows[0]["exact/value"] == 50331651.0
    assert all("loss" in row for row in rows[:-1])
    files = {record.step: record.metrics for record in metrics_rows(tmp_path)}
    for row in rows[:-1]:
        ours = {name: value for name, value in row.items() if name.startswith(("train_perf/", "moe_balance/"))}
        assert ours == {name: files[int(row["step"])][name] for name in ours}
        assert files[int(row["step"])]["loss"] == row["loss"]  # of this row, not of the one before


def test_every_logger_gets_what_user_code_records(tmp_path):
    class Recording(Module):
        def training_step(self, batch, batch_idx):
            with stats_tracker.scope("ppo_actor"):
                mask = batch["attention_mask"].bool()
                stats_tracker.denominator(n_valid_tokens=mask)
                stats_tracker.stat("n_valid_tokens", position=torch.arange(mask.shape[1]).expand(mask.shape).float())
            return super().training_step(batch, batch_idx)

    loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "tb")]
    trainer(tmp_path, AReaLMetricsCallback(report=False), logger=loggers, max_epochs=1, log_every_n_steps=7).fit(
        Recording(), loader()
    )
    places = np.concatenate([np.flatnonzero(Sequences(ROWS)[index]["attention_mask"]) for index in range(ROWS)])
    (row,) = [row for row in csv_rows(tmp_path / "csv") if "ppo_actor/position/avg" in row]
    assert row["ppo_actor/n_valid_tokens"] == len(places)
    assert row["ppo_actor/position/avg"] == pytest.approx(places.mean(), rel=1e-12)
    assert row["ppo_actor/position/max"] == places.max()
    board = tensorboard_rows(next((tmp_path / "tb").rglob("events*")).parent)[int(row["step"])]
    assert board["ppo_actor/n_valid_tokens"] == len(places)
    assert board["train_perf/tokens"] == tokens()


class Plain(LightningModule):
    """A model that is no Hugging Face model, called with tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def training_step(self, batch, batch_idx):
        ids = batch[0] if isinstance(batch, list | tuple) else batch
        return self.table(ids).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Tensors(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((9,), index)


@pytest.mark.parametrize(
    "data", [TensorDataset(torch.zeros(6, 9, dtype=torch.long)), Tensors()], ids=["tuple", "tensor"]
)
def test_batches_that_are_tuples_or_tensors_are_counted(data, tmp_path):
    trainer(tmp_path, AReaLMetricsCallback(report=False), max_epochs=1).fit(Plain(), DataLoader(data, 2))
    assert sum(row["train_perf/tokens"] for row in csv_rows(tmp_path)) == 6 * 9


def test_token_count_fn_sees_the_arguments_of_the_training_step(tmp_path):
    def lengths(batch, batch_idx):
        return [3 + batch_idx] * len(batch[0])

    data = DataLoader(TensorDataset(torch.zeros(6, 4, 4)), 2)

    class Images(Plain):
        def training_step(self, batch, batch_idx):
            return (self.table.weight.sum() * batch[0].sum()).square()

    trainer(tmp_path, AReaLMetricsCallback(report=False, token_count_fn=lengths), max_epochs=1).fit(Images(), data)
    assert sum(row["train_perf/tokens"] for row in csv_rows(tmp_path)) == 2 * (3 + 4 + 5)


def test_manual_optimisation_with_several_optimizers_counts_every_step(tmp_path):
    class Manual(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            for optimizer, steps in ((first, True), (second, batch_idx % 2 == 0)):
                loss = self.model(**batch).loss
                with torch.no_grad():
                    self.model(**batch)  # a reference forward inside the step
                optimizer.zero_grad()
                self.manual_backward(loss)
                if steps:
                    optimizer.step()

        def configure_optimizers(self):
            halves = list(self.parameters())
            return [torch.optim.SGD(halves[:3], 0.01), torch.optim.SGD(halves[3:], 0.01)]

    trainer(tmp_path, AReaLMetricsCallback(report=False), max_epochs=1).fit(Manual(), loader())
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert len(rows) == ROWS // 2
    assert sum(row["train_perf/tokens"] for row in rows) == 2 * tokens()  # two training forwards a batch
    assert sum(row["train_perf/optimizer_steps"] for row in rows) == 7 + 4


def test_beside_lightnings_throughput_monitor(tmp_path):
    """It needs functions for what a batch holds, and has no rates before its window is full; ours are there at once."""
    from lightning.pytorch.callbacks import ThroughputMonitor

    theirs = ThroughputMonitor(batch_size_fn=len, length_fn=lambda batch: batch["input_ids"].numel(), window_size=4)
    host = trainer(tmp_path, theirs, AReaLMetricsCallback(report=False), max_epochs=1, accumulate_grad_batches=2)
    host.fit(Module(), DataLoader(Sequences(ROWS), 4))  # batches of 4, 4, 4 and 2
    rows = csv_rows(tmp_path)
    assert [row["train_perf/optimizer_steps"] for row in rows if "train_perf/tokens" in row] == [1, 1]
    first = next(row for row in rows if "train_perf/tokens" in row)
    masks = [Sequences(ROWS)[index]["attention_mask"] for index in range(ROWS)]
    assert first["train_perf/tokens"] == sum(int(mask.sum()) for mask in masks[:8])
    assert first["train_perf/tokens_per_second"] == first["train_perf/tokens"] / first["train_perf/seconds"]
    assert first["train_perf/estimated_flops_per_second"] > 0
    assert not any("per_sec" in name for name in first if name.startswith("train|"))
    assert sum(row["train_perf/tokens"] for row in rows if "train_perf/tokens" in row) == tokens()
