"""Wrong arguments raise at once; what goes wrong later is said once and costs the training nothing."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from support.distributed import Ranks
from support.tiny_trainer import (
    Recount,
    dense_model,
    load_records,
    make_trainer,
    mask_lengths,
    metric_records,
    moe_model,
    our_rows,
    squares,
    total_loads,
)
from torch import nn
from transformers import TrainerCallback

from areal_callbacks import register_flops_estimator
from areal_callbacks.integrations.transformers import AReaLMetricsCallback
from areal_callbacks.safety.reporting import logger


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger.name]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": 0}, ["every", "0"]),
        ({"every": "often"}, ["every", "often"]),
        ({"moe_balanse": False}, ["moe_balanse", "moe_balance"]),
        ({"moe_balance": {"per_expert_scalars": "sometimes"}}, ["per_expert_scalars", "sometimes", "auto"]),
        ({"moe_balance": {"tables": 3}}, ["tables", "expert_table_every"]),
        ({"config": {"througput": True}}, ["througput", "throughput"]),
        ({"config": "no_such_file.yaml"}, ["no_such_file.yaml"]),
        ({"evaluate_before_train": "yes"}, ["evaluate_before_train", "yes", "True"]),
    ],
)
def test_wrong_arguments_raise_at_construction(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        AReaLMetricsCallback(**options)
    assert not [word for word in named if word not in str(raised.value)]


@pytest.mark.parametrize(
    ("options", "absent", "present"),
    [
        ({"moe_balance": False}, "moe_balance/", "train_perf/tokens"),
        ({"flops": False}, "train_perf/estimated_flops", "train_perf/tokens"),
        ({"throughput": False}, "train_perf/", "moe_balance/worst_layer"),
    ],
)
def test_a_family_that_is_switched_off(options: dict[str, Any], absent: str, present: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(**options)])
    trainer.train()
    for row in (row for row in trainer.state.log_history if "loss" in row):
        assert present in row
        assert not [name for name in row if name.startswith(absent)]


def test_a_dense_model_is_silently_without_moe_balance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, model=dense_model(), callbacks=[AReaLMetricsCallback()])
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert not [name for row in trainer.state.log_history for name in row if name.startswith("moe_balance/")]
    assert not list(load_records(tmp_path))
    assert messages(caplog) == []


class MysteryRouter(nn.Module):
    """Routes as the one it replaces, without telling how many experts it chooses."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.weight = router.weight
        self.num_experts = router.num_experts
        self._chosen = router.top_k

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = hidden.reshape(-1, hidden.shape[-1]) @ self.weight.T
        weights, experts = logits.softmax(-1).topk(self._chosen)
        return logits, weights / weights.sum(-1, keepdim=True), experts


def test_one_warning_names_an_unsupported_router(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = moe_model()
    for layer in model.model.layers:
        layer.mlp.gate = MysteryRouter(layer.mlp.gate)
    trainer = make_trainer(tmp_path, model=model, callbacks=[AReaLMetricsCallback()])
    trainer.train()
    trainer.train()
    (message,) = messages(caplog)
    assert "MysteryRouter" in message
    assert not [name for row in trainer.state.log_history for name in row if name.startswith("moe_balance/")]
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] > 0


def test_a_flops_factory_that_raises_costs_the_flops_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    register_flops_estimator("qwen3_moe", lambda config: config.no_such_field)
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback()])
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert not [name for row in our_rows(trainer) for name in row if "flops" in name]
    (message,) = messages(caplog)
    assert "no_such_field" in message


def broken(**_: torch.Tensor) -> list[int]:
    raise OSError("no lengths today")


def test_a_failing_function_is_said_once_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(token_count_fn=broken)])
    trainer.train()
    assert trainer.state.global_step == 4
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert not [name for row in rows for name in row if name.startswith(("train_perf/", "timeperf/"))]
    assert all("moe_balance/worst_layer" in row for row in rows)
    assert len([message for message in messages(caplog) if "no lengths today" in message]) == 1
    assert len(messages(caplog)) == 2  # the cause, and what it costs


def one_failing_rank(_group: Any, folder: str) -> dict[str, Any]:
    import logging

    import torch.distributed as dist

    from areal_callbacks import stats_tracker
    from areal_callbacks.safety import reporting

    class Records(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with stats_tracker.scope("ppo_actor"):
                mask = torch.tensor([True, dist.get_rank() == 0, False])
                stats_tracker.denominator(valid=mask)
                loss = torch.tensor([1.0, 4.0, 99.0]) + 6 * dist.get_rank()
                stats_tracker.stat(loss=loss, denominator="valid")

    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    reporting.reset()
    counted = (lambda **inputs: inputs["attention_mask"].sum(-1)) if dist.get_rank() == 0 else broken
    trainer = make_trainer(
        folder,
        callbacks=[AReaLMetricsCallback(token_count_fn=counted), Records()],
        report_to=["tensorboard"],
    )
    trainer.train()
    logger.removeHandler(handler)
    return {"rows": [row for row in trainer.state.log_history if "loss" in row], "heard": heard}


@pytest.mark.slow
def test_a_family_that_fails_on_one_rank_is_absent_on_both_and_statistics_are_pooled(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    from support.readback import tensorboard_rows

    first, second = two_ranks.run(one_failing_rank, str(tmp_path))
    pooled = {"ppo_actor/loss/avg": 4.0, "ppo_actor/loss/min": 1.0, "ppo_actor/loss/max": 7.0, "ppo_actor/valid": 3.0}
    (events,) = tmp_path.rglob("events.out.*")  # the first rank's alone
    shown = tensorboard_rows(events.parent)
    written = {record.step: record.metrics for record in metric_records(tmp_path)}
    assert [row["step"] for row in first["rows"]] == [1, 2]
    for row, other in zip(first["rows"], second["rows"]):
        assert row == other
        assert not [name for name in row if name.startswith("train_perf/")]
        assert "moe_balance/worst_layer" in row
        for destination in (row, written[row["step"]], shown[row["step"]]):
            assert destination.items() >= pooled.items()
    assert [len(first["heard"]), len(second["heard"])] == [1, 2]
    assert "no lengths today" in second["heard"][0]


class Replicas(nn.DataParallel):
    """DataParallel as it works on two GPUs, where there are none: replicas in threads, each with half a batch."""

    def forward(self, *args: Any, **inputs: Any) -> dict[str, torch.Tensor]:
        halves = [
            {name: value.chunk(2)[part] if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
            for part in range(2)
        ]
        outputs: list[Any] = [None, None]

        def run(part: int, model: nn.Module) -> None:
            with torch.enable_grad() if torch_grad else torch.no_grad():
                outputs[part] = model(**halves[part])

        torch_grad = torch.is_grad_enabled()
        threads = [threading.Thread(target=run, args=(part, replica(self.module))) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {
            "loss": torch.stack([output.loss for output in outputs]),
            "logits": torch.cat([output.logits for output in outputs]),
        }


def replica(module: nn.Module) -> nn.Module:
    """What torch.nn.parallel.replicate makes, with the parameters shared instead of broadcast."""
    twin = module._replicate_for_data_parallel()
    twin._parameters = dict(module._parameters)
    for name, child in module._modules.items():
        twin._modules[name] = None if child is None else replica(child)
    return twin


def test_data_parallel_replicas_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.nn, "DataParallel", Replicas)
    model = moe_model()
    recount = Recount(model)
    trainer = make_trainer(
        tmp_path, model=model, callbacks=[AReaLMetricsCallback(flops={"peak_flops": 1e12})], interleave=True
    )
    trainer.args._n_gpu = 2
    trainer.train()
    assert type(trainer.model_wrapped) is Replicas
    lengths = mask_lengths(trainer.batches)
    assert sum(row["train_perf/tokens"] for row in our_rows(trainer)) == sum(lengths)
    assert sum(row["train_perf/estimated_flops"] for row in our_rows(trainer)) == squares(lengths)
    np.testing.assert_array_equal(total_loads(tmp_path), recount.counts)
    assert messages(caplog) == []


class Pretends(TrainerCallback):
    """Changes what the Trainer says, around our callback alone: such a training cannot run on this machine."""

    def __init__(self, change: Any) -> None:
        self.change = change
        self.trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.change(self.trainer)


def pretending(folder: Path, begin: Any, end: Any) -> Any:
    first, last = Pretends(begin), Pretends(end)
    trainer = make_trainer(folder, callbacks=[first, AReaLMetricsCallback(), last])
    first.trainer = last.trainer = trainer
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    return trainer


def test_deepspeed_is_measured_but_for_its_optimizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def set_type(kind: DistributedType) -> Any:
        return lambda trainer: setattr(trainer.accelerator.state, "distributed_type", kind)

    trainer = pretending(tmp_path, set_type(DistributedType.DEEPSPEED), set_type(DistributedType.NO))
    assert not [name for row in our_rows(trainer) for name in row if "optimizer" in name]
    (message,) = messages(caplog)
    assert "DeepSpeed" in message
    assert "optimizer" in message


def test_sequence_parallelism_leaves_flops_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = pretending(
        tmp_path,
        lambda trainer: setattr(trainer, "get_sp_size", lambda: 2),
        lambda trainer: delattr(trainer, "get_sp_size"),
    )
    assert not [name for row in our_rows(trainer) for name in row if "flops" in name]
    (message,) = messages(caplog)
    assert "sequence parallelism" in message


def test_a_second_callback_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(), AReaLMetricsCallback()])
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert len(metric_records(tmp_path)) == 4
    (message,) = messages(caplog)
    assert "two metrics callbacks" in message


def test_no_trainer_to_be_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path)
    callback = AReaLMetricsCallback()
    callback.on_train_begin(trainer.args, copy.copy(trainer.state), trainer.control)
    callback.on_step_begin(trainer.args, trainer.state, trainer.control)
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    (message,) = messages(caplog)
    assert "nothing will be measured" in message


@pytest.mark.parametrize(
    ("preparation", "named"),
    [
        ("sys.modules['transformers'] = None", "pip install 'areal-callbacks[transformers]'"),
        ("import transformers; del transformers.Trainer._run_epoch", "too old, it has no _run_epoch"),
    ],
)
def test_a_missing_or_old_framework_is_named(preparation: str, named: str) -> None:
    program = f"import sys; {preparation}\nimport areal_callbacks.integrations.transformers"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert "ImportError" in result.stderr.splitlines()[-1]
    assert named in result.stderr.splitlines()[-1]
