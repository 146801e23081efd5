"""A callback that holds other callbacks and hands every event on to them, ours among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.readback import messages
from support.tiny_trainer import make_trainer, mask_lengths, metric_records, moe_model, our_rows
from transformers import TrainerCallback

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


class Group(TrainerCallback):
    def __init__(self, *members: TrainerCallback) -> None:
        self.members = members


def _handing_on(event: str) -> Any:
    def hand_on(self: Group, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        for member in self.members:
            control = getattr(member, event)(args, state, control, **kwargs) or control
        return control

    return hand_on


for name in EVENTS:
    setattr(Group, name, _handing_on(name))


class Counts(TrainerCallback):
    """A member after ours."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1


def weights(folder: Path, *callbacks: Any) -> tuple[list[torch.Tensor], Any]:
    host = make_trainer(folder, model=moe_model(), callbacks=callbacks)
    host.train()
    return [parameter.detach() for parameter in host.model.parameters()], host


@pytest.mark.parametrize("nested", [False, True])
def test_it_measures_as_it_does_alone(nested: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = weights(tmp_path / "without")
    ours, counts = AReaLMetricsCallback(report=False), Counts()
    group = Group(ours, counts)
    measured, host = weights(tmp_path / "with", Group(group) if nested else group)
    assert all(torch.equal(first, second) for first, second in zip(expected, measured))
    assert our_rows(host)[-1]["train_perf/total_tokens"] == sum(mask_lengths(host.batches))
    assert len(metric_records(tmp_path / "with")) == counts.steps == host.state.global_step
    assert ours.session is None
    assert messages(caplog) == []
