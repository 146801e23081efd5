"""A real Trainer on two gloo ranks: what both trained together, to the integer, however the model is spread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.distributed import Ranks
from support.tiny_trainer import LAYERS, TOP_K, VOCABULARY, metric_records, squares, total_loads

pytestmark = pytest.mark.slow

FLOPS = "train_perf/estimated_flops"


def _count(trainer: Any, recount: Any) -> dict[str, Any]:
    from support.tiny_trainer import mask_lengths, our_rows

    recount.remove()
    return {
        "kind": type(trainer.model_wrapped).__name__,
        "lengths": mask_lengths(trainer.batches),
        "routes": recount.counts,
        "rows": our_rows(trainer),
    }


def _trainer(folder: str, **options: Any) -> tuple[Any, Any]:
    from support.tiny_trainer import Recount, make_trainer, moe_model

    from areal_callbacks import register_flops_estimator
    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    register_flops_estimator("qwen3_moe", lambda config: lambda length: length * (length + 1))
    model = options.pop("model", None) or moe_model()
    recount = Recount(model)
    return make_trainer(folder, model=model, callbacks=[AReaLMetricsCallback()], **options), recount


@contextlib.contextmanager
def _meshes_of_cpu_ranks() -> Iterator[None]:
    """Accelerate checks that a mesh is one of accelerators; gloo carries it as well."""
    from accelerate import ParallelismConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelismConfig, "_validate_accelerator", lambda self, accelerator: None)
        yield


def data_parallel(_group: Any, folder: str, checkpointing: bool | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if checkpointing is not None:
        options = {
            "activation_checkpointing": True,
            "activation_checkpointing_kwargs": {"use_reentrant": checkpointing},
        }
    trainer, recount = _trainer(
        folder, interleave=True, gradient_accumulation_steps=3, eval_strategy="steps", eval_steps=1, **options
    )
    trainer.train()
    return _count(trainer, recount)


def sharded_at_load(_group: Any, folder: str, **sizes: int) -> dict[str, Any]:
    """The Trainer's own FSDP2 and tensor parallelism."""
    import torch.distributed as dist
    from support.tiny_trainer import moe_model
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    if dist.get_rank() == 0:
        moe_model(num_key_value_heads=2).save_pretrained(f"{folder}/model")
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", distributed_config=DistributedConfig(**sizes))
    with _meshes_of_cpu_ranks():
        trainer, recount = _trainer(folder, model=model, interleave=True, gradient_accumulation_steps=3)
    trainer.train()
    return _count(trainer, recount)


def fully_sharded_at_load(_group: Any, folder: str) -> dict[str, Any]:
    return sharded_at_load(_group, folder, fsdp_size=2)


def tensor_parallel(_group: Any, folder: str) -> dict[str, Any]:
    return sharded_at_load(_group, folder, tp_size=2)


def context_parallel(_group: Any, folder: str) -> dict[str, Any]:
    """Batches are really cut in place over a mesh. Attention stays inside the parts: it has no ring kernel on CPUs."""
    from accelerate import ParallelismConfig
    from support.tiny_trainer import moe_model

    model = moe_model(attention="eager")
    with _meshes_of_cpu_ranks():
        trainer, recount = _trainer(folder, model=model, parallelism_config=ParallelismConfig(cp_size=2))
    widths: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    trainer.train()
    return _count(trainer, recount) | {"widths": widths}


def _exported(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) for name in ("train_perf/tokens", FLOPS)}


def _assert_exact(folder: Path, results: list[dict[str, Any]], lengths: list[int], routes: np.ndarray) -> None:
    for result in results:
        assert _exported(result["rows"]) == {"train_perf/tokens": sum(lengths), FLOPS: squares(lengths)}
        assert result["rows"][-1]["train_perf/total_tokens"] == sum(lengths)
    np.testing.assert_array_equal(total_loads(folder), routes)
    written = metric_records(folder)
    assert [record.metrics["train_perf/tokens"] for record in written] == [
        row["train_perf/tokens"]
        for row in results[1]["rows"]  # written by rank 0, the same on rank 1
    ]


@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["none", "reentrant", "non-reentrant"])
def test_data_parallel_ranks_are_summed(checkpointing: bool | None, two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(data_parallel, str(tmp_path), checkpointing)
    assert first["kind"] == "DistributedDataParallel"
    assert first["lengths"] != second["lengths"]
    _assert_exact(tmp_path, [first, second], first["lengths"] + second["lengths"], first["routes"] + second["routes"])
    assert len(first["rows"]) == 2  # four micro-batches in windows of three: the last one is incomplete


def test_fsdp2_ranks_are_summed(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(fully_sharded_at_load, str(tmp_path))
    assert first["kind"].startswith("FSDP")
    assert first["lengths"] != second["lengths"]
    _assert_exact(tmp_path, [first, second], first["lengths"] + second["lengths"], first["routes"] + second["routes"])


def test_tensor_parallel_ranks_count_once(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(tensor_parallel, str(tmp_path))
    assert first["lengths"] == second["lengths"]
    np.testing.assert_array_equal(first["routes"], second["routes"])
    _assert_exact(tmp_path, [first, second], first["lengths"], first["routes"])


def test_context_parallel_ranks_count_whole_sequences_once_and_their_own_routes(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    from support.tiny_trainer import WIDTH

    first, second = two_ranks.run(context_parallel, str(tmp_path))
    assert set(first["widths"] + second["widths"]) == {WIDTH // 2}
    assert first["lengths"] == second["lengths"]
    _assert_exact(tmp_path, [first, second], first["lengths"], first["routes"] + second["routes"])
    np.testing.assert_array_equal((first["routes"] + second["routes"]).sum(1), [16 * WIDTH * TOP_K] * LAYERS)


def plain_loop(_group: Any) -> tuple[str, dict[str, Any]]:
    """Sharded after loading, driven by a session: the Trainer itself puts FSDP aside on CPU ranks."""
    from support.tiny_trainer import Recount, moe_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (2,)), moe_model()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return type(model).__name__, _loop(model, Recount(model))


def _loop(model: Any, recount: Any) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from areal_callbacks import MetricsSession, Topology, register_flops_estimator

    register_flops_estimator("qwen3_moe", lambda config: lambda length: length * (length + 1))
    lengths = []
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MetricsSession(output_dir="unused", report=False) as session:
        session.attach(model, optimizer, Topology.data_parallel(writer_rank=-1))
        for step in range(3):
            ids = torch.randint(1, VOCABULARY, (2, 10), generator=generator)
            batch = [3 + step, 6 + dist.get_rank()]
            mask = torch.arange(10) < torch.tensor(batch)[:, None]
            lengths += batch
            session.begin()
            model(input_ids=ids, attention_mask=mask.long(), labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.end()
            with torch.no_grad():
                model(input_ids=ids, attention_mask=mask.long())
        export = session.export(3)
    loads = np.array([layer.counts.tolist() for layer in export.expert_loads])
    return {"lengths": lengths, "routes": recount.counts, "loads": loads, "metrics": export.metrics}


def test_a_sharded_model_in_a_plain_loop(two_ranks: Ranks) -> None:
    (kind, mine), (_, other) = two_ranks.run(plain_loop)
    assert kind.startswith("FSDP")
    lengths = mine["lengths"] + other["lengths"]
    assert mine["metrics"]["train_perf/tokens"] == sum(lengths)
    assert mine["metrics"][FLOPS] == squares(lengths)
    assert mine["metrics"]["train_perf/optimizer_steps"] == 3
    np.testing.assert_array_equal(mine["loads"], mine["routes"] + other["routes"])
