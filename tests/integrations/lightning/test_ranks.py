"""Lightning and Fabric over two real processes."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.tiny_lightning import Module, csv_rows, trainer
from support.tiny_trainer import EXPERTS, LAYERS, TOP_K, WIDTH, Sequences
from support.versions import needs_fsdp2_on_cpu
from support.wraps import find_wraps
from torch import nn
from torch.utils.data import DataLoader

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.lightning import AReaLMetricsCallback

ROWS = 12


class Pooled(Module):
    def training_step(self, batch, batch_idx):
        with stats_tracker.scope("ppo_actor"):
            stats_tracker.scalar(rank=float(dist.get_rank()))
        return super().training_step(batch, batch_idx)


class Stepping(Module):
    """Manual optimisation in which the second rank refuses every other step."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.optimizers().zero_grad()
        self.manual_backward(self.model(**batch).loss)
        if dist.get_rank() == 0 or batch_idx % 2 == 0:
            self.optimizers().step()


def distributed_fit(group, folder, module_class, settings):  # noqa: ARG001
    warnings.simplefilter("ignore")
    callback = AReaLMetricsCallback(report=False)
    host = trainer(Path(folder), callback, devices=2, max_epochs=1, **settings)
    host.fit(module_class(), DataLoader(Sequences(ROWS), 2))


@pytest.mark.slow
def test_ddp_pools_over_ranks_and_counts_padding_out(two_ranks, tmp_path):
    two_ranks.run(distributed_fit, str(tmp_path), Pooled, {"strategy": "ddp", "log_every_n_steps": 2})
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    expected = sum(int(Sequences(ROWS)[index]["attention_mask"].sum()) for index in range(ROWS))
    assert sum(row["train_perf/tokens"] for row in rows) == expected
    assert [row["ppo_actor/rank"] for row in rows] == [0.5, 0.5]
    assert [row["train_perf/optimizer_steps"] for row in rows] == [2, 1]


@pytest.mark.slow
def test_ranks_that_step_differently_still_meet(two_ranks, tmp_path):
    two_ranks.run(distributed_fit, str(tmp_path), Stepping, {"strategy": "ddp_find_unused_parameters_true"})
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert [row["train_perf/optimizer_steps"] for row in rows] == [1, 1, 1]


class Sharded(Module):
    """Tensor parallel: both ranks hold the same batch."""

    def configure_model(self):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(self.model.lm_head, self.device_mesh["tensor_parallel"], ColwiseParallel())

    def training_step(self, batch, batch_idx):
        hidden = self.model.model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).last_hidden_state
        return self.model.lm_head(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def tensor_parallel_fit(group, folder):  # noqa: ARG001
    from lightning.pytorch.strategies import ModelParallelStrategy

    warnings.simplefilter("ignore")
    callback = AReaLMetricsCallback(report=False)
    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    host = trainer(Path(folder), callback, devices=2, max_epochs=1, strategy=strategy)
    host.fit(Sharded(), DataLoader(Sequences(ROWS), 2))


@pytest.mark.slow
def test_tensor_parallel_ranks_do_not_multiply(two_ranks, tmp_path):
    two_ranks.run(tensor_parallel_fit, str(tmp_path))
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    expected = sum(int(Sequences(ROWS)[index]["attention_mask"].sum()) for index in range(ROWS))
    assert sum(row["train_perf/tokens"] for row in rows) == expected
    from areal_callbacks.writers.jsonl import ExpertLoadsRecord, read_metrics

    (path,) = tmp_path.rglob("metrics.jsonl")
    loads = [record for record in read_metrics(path) if isinstance(record, ExpertLoadsRecord)]
    routed = sum(sum(layer) for record in loads for layer in record.counts)
    assert routed == LAYERS * TOP_K * ROWS * WIDTH
    assert all(len(layer) == EXPERTS for record in loads for layer in record.counts)


class FullySharded(Module):
    """FSDP2: every rank has its own batch and a part of every parameter."""

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        for layer in self.model.model.layers:
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.model, mesh=self.device_mesh["data_parallel"])


def fully_sharded_fit(group, folder):  # noqa: ARG001
    from lightning.pytorch.strategies import ModelParallelStrategy

    warnings.simplefilter("ignore")
    callback = AReaLMetricsCallback(report=False)
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    host = trainer(Path(folder), callback, devices=2, max_epochs=1, strategy=strategy)
    host.fit(FullySharded(), DataLoader(Sequences(ROWS), 2))


@needs_fsdp2_on_cpu
@pytest.mark.slow
def test_fully_sharded_ranks_add_up(two_ranks, tmp_path):
    two_ranks.run(fully_sharded_fit, str(tmp_path))
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    expected = sum(int(Sequences(ROWS)[index]["attention_mask"].sum()) for index in range(ROWS))
    assert sum(row["train_perf/tokens"] for row in rows) == expected
    assert [row["train_perf/optimizer_steps"] for row in rows] == [1, 1, 1]


def sharded_fabric(group, folder):  # noqa: ARG001
    from lightning.fabric import Fabric

    warnings.simplefilter("ignore")
    callback = AReaLMetricsCallback(report=False, output_dir=folder, every=2)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback])
    fabric.launch()
    plain = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 1))
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for index in range(5):
        fabric.backward(model(torch.full((3, 4 + fabric.global_rank), index % 8)).sum())
        optimizer.step()
        optimizer.zero_grad()
    callback.close()
    return find_wraps(fabric) | find_wraps(fabric.strategy)


@pytest.mark.slow
def test_fabric_logs_the_tail_and_leaves_nothing(two_ranks, tmp_path):
    from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

    assert two_ranks.run(sharded_fabric, str(tmp_path)) == [set()] * 2
    records = [r.metrics for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, MetricsRecord)]
    assert sum(row["train_perf/tokens"] for row in records) == 5 * 3 * (4 + 5)
    assert sum(row["train_perf/optimizer_steps"] for row in records) == 5
