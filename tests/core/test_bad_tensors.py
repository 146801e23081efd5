"""A tensor that cannot be read costs its key and its interval, and is named."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.distributed import Ranks
from torch._subclasses.fake_tensor import FakeTensorMode

from areal_callbacks.core.tracker import StatsTracker

GOOD = torch.tensor([1.0, 3.0])
MASK = torch.tensor([True, True])


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2)


BAD = {
    "meta": lambda: torch.ones(2, device="meta"),
    "fake": fake,
    "sparse": lambda: torch.ones(2).to_sparse(),
}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_a_stat_that_cannot_be_read_costs_its_key_and_interval(kind, compact, caplog):
    tracker, bad = StatsTracker(), BAD[kind]()

    def record(value: torch.Tensor) -> None:
        tracker.scalar(reward=1.0)
        if compact:
            tracker.stat_compact(MASK, good=GOOD, bad=value)
        else:
            tracker.denominator(valid=MASK)
            tracker.stat("valid", good=GOOD, bad=value)

    record(bad)
    first = tracker.export()
    record(GOOD)
    second = tracker.export()
    assert (first["reward"], first["good/avg"], second["bad/avg"]) == (1.0, 2.0, 2.0)
    assert "bad/avg" not in first
    assert len(caplog.messages) == 1
    assert "'bad'" in caplog.messages[0]


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_a_mask_that_cannot_be_read_costs_what_is_recorded_over_it(kind):
    tracker = StatsTracker()
    tracker.denominator(valid=BAD[kind]() > 0, other=MASK)
    tracker.stat("valid", lost=GOOD)
    tracker.stat("other", kept=GOOD)
    tracker.scalar(loss=torch.ones((), device="meta"))
    found = tracker.export()
    assert found["kept/avg"] == 2.0
    assert not {"valid", "lost/avg", "loss"} & found.keys()


def record_sharded(_group) -> dict[str, float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    full = torch.arange(4.0)
    tracker = StatsTracker()
    whole, part = distribute_tensor(full, mesh, [Replicate()]), distribute_tensor(full, mesh, [Shard(0)])
    mask = torch.ones(4, dtype=torch.bool)
    if dist.get_rank() == 0:  # no collective of ours may wait for the other rank
        tracker.stat_compact(mask, whole=whole, part=part)
    return tracker.export()


@pytest.mark.slow
def test_reading_a_distributed_tensor_is_no_collective(two_ranks: Ranks):
    first, second = two_ranks.run(record_sharded)
    assert (first["whole/avg"], second) == (1.5, {})
    assert not any(name.startswith("part") for name in first)
