"""The packed reduction over real processes."""

from __future__ import annotations

import torch

from areal_callbacks.core.tracker import StatsTracker


def pooled(group, values):
    import torch.distributed as dist

    tracker = StatsTracker()
    mine = values[dist.get_rank()]
    if mine is not None:
        tensor = torch.tensor(mine, dtype=torch.float64)
        tracker.denominator(valid=torch.ones_like(tensor, dtype=torch.bool))
        tracker.stat("valid", loss=tensor)
    first = tracker.export(reduce_group=group)
    if mine is not None:
        tracker.stat("valid", loss=tensor)
    return first, tracker.export(reduce_group=group)


def test_ranks_with_different_amounts_of_data_give_the_pooled_answer(two_ranks):
    for first, second in two_ranks.run(pooled, ([1.0, 2.0, 6.0], [11.0])):
        assert first == {"valid": 4.0, "loss/avg": 5.0, "loss/min": 1.0, "loss/max": 11.0}
        assert second == {"loss/avg": 5.0, "loss/min": 1.0, "loss/max": 11.0}
