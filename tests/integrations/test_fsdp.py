"""Loops of one's own, on one process and over gloo."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support import hosts
from support.distributed import Ranks
from support.tiny_trainer import moe_config, moe_model
from support.toy_moe import LAYERS, TOP_K, ToyMoE, batches, routed_by_hand
from support.versions import needs_fsdp2_on_cpu, needs_pipelining_of_views
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer

from areal_callbacks import get_flops_estimator
from areal_callbacks.integrations.fsdp import track
from areal_callbacks.topology import Topology
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Ranks]:
    """Ranks of this file alone: other hosts leave their settings in a process."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()


def loads_of(export: Any) -> dict[tuple[str, int], list[int]]:
    return {(layer.stack, layer.layer): layer.counts.tolist() for layer in export.expert_loads}


def hooks_of(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_a_loop_on_one_process(tmp_path: Path) -> None:
    model, data = ToyMoE(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with track(model, optimizer, output_dir=str(tmp_path), report=False) as metrics:
        for batch in data:
            with metrics.step():
                model(batch).sum().backward()
                optimizer.step()
        export = metrics.export(4)
    assert type(export.metrics) is dict
    assert {type(value) for value in export.metrics.values()} == {float}
    json.dumps(export.metrics)
    assert export.metrics["train_perf/tokens"] == sum(batch.numel() for batch in data)
    assert export.metrics["train_perf/optimizer_steps"] == 4
    expected = routed_by_hand(model, data)
    assert loads_of(export) == {("", layer): row.tolist() for layer, row in enumerate(expected)}
    assert expected.sum() == LAYERS * TOP_K * sum(batch.numel() for batch in data)


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_steps_after_the_last_export_go_to_the_files_unless_the_loop_failed(error: Any, tmp_path: Path) -> None:
    model, data = ToyMoE(), batches(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with contextlib.suppress(RuntimeError), track(model, optimizer, output_dir=str(tmp_path), report=False) as metrics:
        for step, batch in enumerate(data):
            with metrics.step():
                model(batch).sum().backward()
                optimizer.step()
            if step == 2:
                metrics.export(step)
        if error is not None:
            raise error
    records = [r for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, MetricsRecord)]
    assert [(record.step, record.metrics["train_perf/optimizer_steps"]) for record in records] == (
        [(2, 3), (4, 2)] if error is None else [(2, 3)]
    )
    expected = sum(batch.numel() for batch in (data if error is None else data[:3]))
    assert sum(record.metrics["train_perf/tokens"] for record in records) == expected


def test_a_model_whose_parameters_get_their_memory_later(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = ToyMoE()
    data = batches(2)
    with track(model, output_dir=str(tmp_path), report=False) as metrics:
        model.to_empty(device="cpu")
        model.load_state_dict(ToyMoE().state_dict())
        for batch in data:
            with metrics.step():
                model(batch).sum().backward()
        export = metrics.export(2)
    assert export.metrics["train_perf/tokens"] == sum(batch.numel() for batch in data)
    assert export.metrics["train_perf/seconds"] > 0
    expected = routed_by_hand(model, data)
    assert loads_of(export) == {("", layer): row.tolist() for layer, row in enumerate(expected)}


def test_time_is_what_runs_inside_step(tmp_path: Path) -> None:
    model = ToyMoE()
    with track(model, output_dir=str(tmp_path), report=False) as metrics:
        with metrics.step():
            model(batches(1)[0])
        first = metrics.export(1).metrics["train_perf/seconds"]
        began = time.perf_counter()
        with metrics.step():
            time.sleep(0.2)
        outer = time.perf_counter() - began
        time.sleep(0.3)
        second = metrics.export(2).metrics["train_perf/seconds"]
    assert first > 0
    assert 0.2 <= second <= outer


def test_everything_is_undone_also_after_an_exception(tmp_path: Path) -> None:
    model = ToyMoE()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    before = hooks_of(model)
    metrics = track(model, optimizer, output_dir=str(tmp_path), report=False)
    assert hooks_of(model) > before
    with pytest.raises(IndexError), metrics, metrics.step():
        model(torch.tensor([[10**6]]))
    assert hooks_of(model) == before
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_several_optimizers_are_counted(tmp_path: Path) -> None:
    model = ToyMoE()
    halves = [model.layers.parameters(), model.head.parameters()]
    optimizers = [torch.optim.SGD(half, lr=0.0) for half in halves]
    with track(model, optimizers, output_dir=str(tmp_path), report=False) as metrics:
        with metrics.step():
            model(batches(1)[0]).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        assert metrics.export(1).metrics["train_perf/optimizer_steps"] == 2


def test_wrong_arguments_raise_at_once() -> None:
    with pytest.raises(ValueError, match="moe_balanse"):
        track(ToyMoE(), moe_balanse=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="empty sequence"):
        track([])


# -- two ranks


def sharded(kind: str) -> nn.Module:
    model = moe_model()
    if kind == "fsdp1":
        policy = ModuleWrapPolicy({Qwen3MoeDecoderLayer})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
        )
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def train_sharded(group: Any, folder: str, kind: str) -> list[dict[str, float]]:  # noqa: ARG001
    model, rank = sharded(kind), dist.get_rank()
    optimizer = hosts.optimizer_of(model)
    rows = []
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    with track(model, optimizer, topology=Topology.from_mesh(mesh), output_dir=folder, report=False) as metrics:
        for epoch in range(hosts.EPOCHS):
            for index, batch in enumerate(DataLoader(hosts.rows(), hosts.BATCH)):
                if index % 2 == rank:
                    with metrics.step():
                        model(**batch).loss.backward()
                        if (index // 2 + 1) % hosts.ACCUMULATE == 0:
                            optimizer.step()
                            optimizer.zero_grad()
            rows.append(metrics.export(epoch + 1).metrics)
    return rows


def summary(folder: Path) -> tuple[dict[str, float], list[Any]]:
    """Sums over a run: metrics, and counts per layer and expert."""
    records = list(read_metrics(folder / "metrics.jsonl"))
    rows = [record.metrics for record in records if isinstance(record, MetricsRecord)]
    names = ("tokens", "estimated_flops", "optimizer_steps")
    counts = [np.array(record.counts) for record in records if isinstance(record, ExpertLoadsRecord)]
    return {name: sum(row[f"train_perf/{name}"] for row in rows) for name in names}, sum(counts).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp1", pytest.param("fsdp2", marks=needs_fsdp2_on_cpu)])
@pytest.mark.filterwarnings("ignore:.*FSDP.*", "ignore:.*fully_shard.*", "ignore:.*NO_SHARD.*")
def test_the_numbers_are_those_of_the_hugging_face_trainer(kind: str, tmp_path: Path, own_ranks: Ranks) -> None:
    first, second = own_ranks.run(train_sharded, str(tmp_path / kind), kind)
    assert first == second
    own_ranks.run(hosts.train, "transformers", str(tmp_path / "trainer"))
    own_ranks.close()
    assert summary(tmp_path / kind) == summary(tmp_path / "trainer")

    lengths = [int(row["attention_mask"].sum()) for row in hosts.rows()] * hosts.EPOCHS
    estimate = get_flops_estimator(moe_config())
    numbers, _ = summary(tmp_path / kind)
    assert numbers["tokens"] == sum(lengths)
    assert numbers["estimated_flops"] == sum(estimate(length) for length in lengths)


def train_pipeline(group: Any, folder: str) -> tuple[dict[tuple[str, int], list[int]], dict[str, float]]:  # noqa: ARG001
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    rank, half = mesh.get_local_rank(), LAYERS // 2
    part = ToyMoE(kept=range(rank * half, (rank + 1) * half))
    stage = PipelineStage(part, rank, 2, torch.device("cpu"), group=mesh.get_group())
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=lambda output, _: output.sum())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.0)
    with track([part], optimizer, topology=Topology.from_mesh(mesh), output_dir=folder, report=False) as metrics:
        for batch in batches(3, size=4):
            with metrics.step():
                if rank == 0:
                    schedule.step(batch)
                else:
                    schedule.step(target=batch)
                optimizer.step()
        export = metrics.export(3)
    return loads_of(export), export.metrics


@pytest.mark.slow
@needs_pipelining_of_views
def test_the_stages_of_a_pipeline(tmp_path: Path, own_ranks: Ranks) -> None:
    (loads, metrics), other = own_ranks.run(train_pipeline, str(tmp_path))
    assert other == (loads, metrics)
    data = batches(3, size=4)
    expected = routed_by_hand(ToyMoE(), data)
    assert loads == {("", layer): row.tolist() for layer, row in enumerate(expected)}
    assert metrics["train_perf/tokens"] == sum(batch.numel() for batch in data)
    assert metrics["train_perf/optimizer_steps"] == 3


def train_replicated(group: Any, folder: str, name: str) -> tuple[dict[tuple[str, int], list[int]], float]:  # noqa: ARG001
    topology = Topology.from_mesh(init_device_mesh("cpu", (2,), mesh_dim_names=(name,)))
    model = ToyMoE()
    with track(model, topology=topology, output_dir=folder, report=False) as metrics:
        with metrics.step():
            model(batches(1)[0]).sum().backward()
        export = metrics.export(1)
    return loads_of(export), export.metrics["train_perf/tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "times"), [("tp", 1), ("dp", 2)])
def test_replicas_count_once(name: str, times: int, tmp_path: Path, own_ranks: Ranks) -> None:
    (loads, tokens), other = own_ranks.run(train_replicated, str(tmp_path), name)
    assert other == (loads, tokens)
    (batch,) = batches(1)
    assert tokens == times * batch.numel()
    expected = times * routed_by_hand(ToyMoE(), [batch])
    assert loads == {("", layer): row.tolist() for layer, row in enumerate(expected)}
