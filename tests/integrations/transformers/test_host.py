"""Trainers that tell less: replicas in one process, DeepSpeed, sequence parallelism, none at all, old versions."""

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
from support.readback import messages
from support.tiny_trainer import (
    Recount,
    make_trainer,
    mask_lengths,
    moe_model,
    our_rows,
    squares,
    total_loads,
)
from torch import nn
from transformers import TrainerCallback

from areal_callbacks.integrations.transformers import AReaLMetricsCallback


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


def test_no_trainer_to_be_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path)
    callback = AReaLMetricsCallback()
    callback.on_train_begin(trainer.args, copy.copy(trainer.state), trainer.control)
    callback.on_step_begin(trainer.args, trainer.state, trainer.control)
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    (message,) = messages(caplog)
    assert "nothing will be measured" in message


def test_a_missing_framework_is_named() -> None:
    program = "import sys; sys.modules['transformers'] = None\nimport areal_callbacks.integrations.transformers"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert "ImportError" in result.stderr.splitlines()[-1]
    assert "pip install 'areal-callbacks[transformers]'" in result.stderr.splitlines()[-1]
