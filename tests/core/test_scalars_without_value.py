"""Scalars whose value this rank does not hold are left out; the loop and every other statistic go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.distributed import Ranks
from support.readback import messages
from torch._subclasses import FakeTensorMode

from areal_callbacks.core.tracker import StatsTracker


def make_scalars() -> dict[str, torch.Tensor]:
    with FakeTensorMode():
        fake = torch.ones(())
    return {"meta": torch.ones((), device="meta"), "fake": fake}


@pytest.mark.parametrize("name", ["meta", "fake"])
def test_a_tensor_without_a_value_costs_only_itself(name: str, caplog: pytest.LogCaptureFixture) -> None:
    tracker = StatsTracker()
    for _ in range(2):
        tracker.scalar(**{name: make_scalars()[name], "loss": torch.tensor(0.5), "reward": 2.0})
    assert tracker.export() == {"loss": 0.5, "loss__count": 2, "reward": 2.0, "reward__count": 2}
    tracker.scalar(loss=1.0)
    assert tracker.export() == {"loss": 1.0, "loss__count": 1}
    (message,) = messages(caplog)
    assert message.startswith(f"scalar '{name}' is left out: it is a meta or fake tensor")


def record_distributed_scalars(group: Any) -> dict[str, float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (2,))
    value = torch.tensor(3.0, requires_grad=True)
    tracker = StatsTracker()
    tracker.scalar(
        norm=DTensor.from_local(value, mesh, [Partial()]), whole=DTensor.from_local(value, mesh, [Replicate()])
    )
    return tracker.export(reduce_group=group)


@pytest.mark.slow
def test_a_dtensor_counts_where_every_rank_holds_all_of_it(two_ranks: Ranks) -> None:
    assert two_ranks.run(record_distributed_scalars) == [{"whole": 3.0, "whole__count": 2}] * 2
