"""Accelerate on two gloo ranks: what both trained together, however the ranks are arranged and whoever logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.distributed import Ranks
from support.readback import tensorboard_rows
from support.tiny_accelerate import flops_of
from support.tiny_trainer import LAYERS, TOP_K, WIDTH, metric_records, total_loads
from support.versions import needs_fsdp2_on_cpu, needs_sequence_parallelism, needs_tensor_parallel_loading

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def kept_group() -> Iterator[None]:
    """``end_training`` destroys the process group, which the next test of these ranks needs."""
    import torch.distributed as dist

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "destroy_process_group", lambda *_: None)
        yield


@contextlib.contextmanager
def meshes_of_cpu_ranks() -> Iterator[None]:
    """Accelerate checks that a mesh is one of accelerators; gloo carries it as well."""
    from accelerate import ParallelismConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelismConfig, "_validate_accelerator", lambda self, accelerator: None)
        yield


def _result(loop: Any, **more: Any) -> dict[str, Any]:
    loop.recount.remove()
    lengths = [length for step in loop.lengths for length in step]
    return {"kind": type(loop.model).__name__, "lengths": lengths, "routes": loop.recount.counts, **more}


def data_parallel(_group: Any, folder: str, who: str) -> dict[str, Any]:
    import torch
    from support.tiny_accelerate import Loop, Rows, make_accelerator

    from areal_callbacks import stats_tracker
    from areal_callbacks.integrations.accelerate import enable

    tracker = Rows()
    accelerator = make_accelerator(folder, log_with=[tracker, "tensorboard"], gradient_accumulation_steps=2)
    enable(accelerator, every=1 if who == "everybody" else 2, report=False)
    loop = Loop(accelerator, number=18)  # nine batches: the last is repeated for the other rank
    rank = accelerator.process_index

    def log(step: int, loss: float) -> None:
        with stats_tracker.scope("ppo_actor"):
            stats_tracker.denominator(valid=torch.tensor([True] * (1 + rank)))
            stats_tracker.stat("valid", reward=torch.full((1 + rank,), 10.0 * step + rank))
        if who == "everybody" or (accelerator.is_main_process and step % 2 == 0):
            accelerator.log({"loss": loss}, step=step)

    loop.run(log)
    with kept_group():
        accelerator.end_training()
    return _result(loop, rows=tracker.rows, steps=loop.steps)


def uneven(_group: Any, folder: str) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator
    from support.tiny_accelerate import Loop, make_accelerator

    from areal_callbacks.integrations.accelerate import enable

    accelerator = make_accelerator(folder)
    enable(accelerator, every=2, report=False)
    loop = Loop(accelerator)
    own = [{"input_ids": torch.ones(2, 4 + rank, dtype=torch.long)} for rank in range(2)][accelerator.process_index]
    loop.loader = [{**own, "labels": own["input_ids"], "attention_mask": own["input_ids"]}] * (
        3 + 2 * accelerator.process_index
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accelerator, "multi_device", True)  # Accelerate joins ranks of accelerators only; DDP any
        with accelerator.join_uneven_inputs([loop.model], even_batches=False):
            loop.run()
    loop.loader = loop.loader[:2]
    loop.run()
    with kept_group():
        accelerator.end_training()
    return _result(loop)


def fully_sharded(_group: Any, folder: str) -> dict[str, Any]:
    """Accelerate chooses FSDP for accelerators only, so it is told that it has."""
    from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils import DistributedType
    from support.tiny_accelerate import Loop, make_accelerator

    from areal_callbacks.integrations.accelerate import enable

    with meshes_of_cpu_ranks():
        accelerator = make_accelerator(folder, parallelism_config=ParallelismConfig(dp_shard_size=2))
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Qwen3MoeDecoderLayer"],
    )
    accelerator.state.distributed_type = DistributedType.FSDP
    enable(accelerator, report=False)
    loop = Loop(accelerator)
    loop.run()
    with kept_group():
        accelerator.end_training()
    return _result(loop)


def tensor_parallel(_group: Any, folder: str) -> dict[str, Any]:
    import torch.distributed as dist
    from accelerate import ParallelismConfig
    from accelerate.utils import DistributedType
    from support.tiny_accelerate import Loop, make_accelerator
    from support.tiny_trainer import moe_model
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    from areal_callbacks import stats_tracker
    from areal_callbacks.integrations.accelerate import enable

    if dist.get_rank() == 0:
        moe_model(num_key_value_heads=2).save_pretrained(f"{folder}/model")
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", distributed_config=DistributedConfig(tp_size=2))
    with meshes_of_cpu_ranks():
        accelerator = make_accelerator(folder, parallelism_config=ParallelismConfig(tp_size=2))
    accelerator.state.distributed_type = DistributedType.MULTI_GPU  # else DDP is put around a tensor-parallel model
    enable(accelerator, report=False)
    loop = Loop(accelerator, model=model.train())
    stats_tracker.scalar(mine=float(dist.get_rank()))
    loop.run()
    with kept_group():
        accelerator.end_training()
    return _result(loop, sharded=type(next(iter(model.parameters()))).__name__)


def context_parallel(_group: Any, folder: str) -> dict[str, Any]:
    """Batches are really cut in place over a mesh. Attention stays inside the parts: it has no ring kernel on CPUs."""
    import torch
    from accelerate import ParallelismConfig
    from support.tiny_accelerate import Loop, make_accelerator
    from support.tiny_trainer import moe_model

    from areal_callbacks.integrations.accelerate import enable

    with meshes_of_cpu_ranks():
        accelerator = make_accelerator(folder, parallelism_config=ParallelismConfig(cp_size=2))
    enable(accelerator, report=False)
    loop = Loop(accelerator, model=moe_model(attention="eager"))
    widths = []
    for batch in loop.loader:
        inputs = [batch["input_ids"], batch["labels"]]
        positions = torch.arange(WIDTH).repeat(len(inputs[0]), 1)
        buffers = [*inputs, positions]
        with accelerator.maybe_context_parallel(buffers, [1, 1, 1], set(buffers)):
            widths.append(batch["input_ids"].shape[1])
            loss = loop.model(input_ids=batch["input_ids"], position_ids=positions, labels=batch["labels"]).loss
            accelerator.backward(loss)
        loop.lengths.append([WIDTH] * len(positions))
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    with kept_group():
        accelerator.end_training()
    return _result(loop, widths=widths)


def sequence_parallel(_group: Any, folder: str) -> dict[str, Any]:
    """As with DeepSpeed's adapter of the data loader, which is not installed here: every rank gets half the columns."""
    from accelerate import ParallelismConfig
    from support.tiny_accelerate import Loop, make_accelerator

    from areal_callbacks.integrations.accelerate import enable

    with meshes_of_cpu_ranks():
        accelerator = make_accelerator(folder, parallelism_config=ParallelismConfig(sp_size=2))
    enable(accelerator, report=False)
    loop = Loop(accelerator)
    half = slice(accelerator.process_index * WIDTH // 2, (accelerator.process_index + 1) * WIDTH // 2)
    loop.loader = [{name: values[:, half] for name, values in batch.items()} for batch in whole_batches()]
    loop.run()
    with kept_group():
        accelerator.end_training()
    return _result(loop)


def whole_batches() -> list[dict[str, Any]]:
    from support.tiny_trainer import Sequences
    from torch.utils.data import DataLoader

    return list(DataLoader(Sequences(), 2))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Of this file alone: FSDP and meshes stay in the settings of a process."""
    own = Ranks(2)
    yield own
    own.close()


@pytest.fixture
def trained(
    ranks: Ranks, tmp_path: Path
) -> Callable[..., tuple[dict[str, Any], dict[str, Any], list[dict[str, float]]]]:
    def train(job: Callable[..., Any], *args: Any) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, float]]]:
        first, second = ranks.run(job, str(tmp_path), *args)
        return first, second, [record.metrics for record in metric_records(tmp_path)]

    return train


def total(rows: list[dict[str, float]], name: str) -> float:
    return sum(row.get(f"train_perf/{name}", 0) for row in rows)


@pytest.mark.parametrize("who", ["everybody", "main"])
def test_whoever_logs_the_numbers_are_those_of_all_ranks(who, trained, tmp_path):
    first, second, rows = trained(data_parallel, who)
    assert first["kind"] == "DistributedDataParallel"
    assert first["lengths"] != second["lengths"]
    lengths = first["lengths"] + second["lengths"]
    assert (total(rows, "tokens"), total(rows, "estimated_flops")) == (sum(lengths), flops_of(lengths))
    assert total(rows, "optimizer_steps") == first["steps"] == second["steps"] == 3
    np.testing.assert_array_equal(total_loads(tmp_path), first["routes"] + second["routes"])
    assert second["rows"] == []
    steps = [1, 2, 3] if who == "everybody" else [2, 3]
    assert [step for step, _ in first["rows"]] == [*steps, *([4] if who == "everybody" else [])]


def test_what_is_recorded_under_ppo_actor_arrives_in_the_trackers_pooled_over_ranks(trained, tmp_path):
    first, second, _ = trained(data_parallel, "everybody")
    # recorded after the export of its step: it arrives with the next row; rank 0 has one value, rank 1 two
    pooled = [(10 * step + 2 * (10 * step + 1)) / 3 for step in (1, 2, 3)]
    in_tracker = [row["ppo_actor/reward/avg"] for _, row in first["rows"] if "ppo_actor/reward/avg" in row]
    assert in_tracker == pytest.approx(pooled)
    assert [row["ppo_actor/valid"] for _, row in first["rows"] if "ppo_actor/valid" in row] == [3, 3, 3]
    board = tensorboard_rows(tmp_path / "project")
    assert [board[step]["ppo_actor/reward/avg"] for step in (2, 3, 4)] == pytest.approx(pooled)
    assert second["rows"] == []


def test_ranks_with_unequal_numbers_of_batches_meet_at_the_end(trained):
    first, second, rows = trained(uneven)
    assert (len(first["lengths"]), len(second["lengths"])) == (2 * (3 + 2), 2 * (5 + 2))
    lengths = [4] * 2 * 3 + [5] * 2 * 5, [4] * 4 + [5] * 4
    assert [row["train_perf/tokens"] for row in rows] == [sum(part) for part in lengths]
    assert total(rows, "optimizer_steps") == 5 + 2  # of the rank with the most


@needs_fsdp2_on_cpu
def test_fsdp2_ranks_are_summed(trained, tmp_path):
    first, second, rows = trained(fully_sharded)
    assert first["kind"].startswith("FSDP")
    lengths = first["lengths"] + second["lengths"]
    assert (total(rows, "tokens"), total(rows, "estimated_flops")) == (sum(lengths), flops_of(lengths))
    np.testing.assert_array_equal(total_loads(tmp_path), first["routes"] + second["routes"])


@needs_tensor_parallel_loading
def test_tensor_parallel_ranks_count_once(trained, tmp_path):
    first, second, rows = trained(tensor_parallel)
    assert first["sharded"] == "DTensor"
    assert first["lengths"] == second["lengths"]
    assert total(rows, "tokens") == sum(first["lengths"])
    np.testing.assert_array_equal(first["routes"], second["routes"])
    np.testing.assert_array_equal(total_loads(tmp_path), first["routes"])
    assert [row["mine"] for row in rows if "mine" in row] == [0.0]


def test_context_parallel_ranks_count_whole_sequences_once_and_their_own_routes(trained, tmp_path):
    first, second, rows = trained(context_parallel)
    assert set(first["widths"] + second["widths"]) == {WIDTH // 2}
    assert total(rows, "tokens") == 16 * WIDTH
    assert total(rows, "estimated_flops") == flops_of([WIDTH] * 16)
    np.testing.assert_array_equal(total_loads(tmp_path), first["routes"] + second["routes"])
    np.testing.assert_array_equal(total_loads(tmp_path).sum(1), [16 * WIDTH * TOP_K] * LAYERS)


@needs_sequence_parallelism
def test_sequence_parallel_ranks_add_up_their_parts_without_flops(trained):
    _, _, rows = trained(sequence_parallel)
    assert total(rows, "tokens") == sum(int(batch["attention_mask"].sum()) for batch in whole_batches())
    assert not any("flops" in name for row in rows for name in row)
