"""What an export costs as ranks multiply: every rank's own code over a process group that compares and counts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.fake_ranks import SimulatedWorld
from support.reductions import DIFFERENT, NEXT, SAME, contents, heard, told

from areal_callbacks.core import agreement
from areal_callbacks.core.reduce import reduce

STAGES, METRICS = 4, 40


def shared(rank):
    return {"stats": contents(**{f"metric_{index}": [float(rank)] for index in range(METRICS)})}


def staged(rank):
    """Layers of a pipeline stage; every second rank repeats another's statistics."""
    stage = rank % STAGES
    return {
        "moe": contents(sums={f"/{layer}": [rank, 1] for layer in range(2 * stage, 2 * stage + 2)}),
        **(shared(rank) if rank // STAGES % 2 == 0 else {"stats": contents()}),
    }


def export(world, families):
    """Results, and (operation, bytes) of the collectives."""
    before = len(world.collectives)
    results = world.run(lambda group: told_of(reduce(families(group.rank), group, "export")))
    return results, [(each.name, each.value.nbytes) for each in world.collectives[before:]]


def told_of(reduced):
    return {name: told(records) for name, records in reduced.items()}


def names(collectives):
    return [name for name, _ in collectives]


@pytest.mark.parametrize(("families", "first"), [(shared, SAME), (staged, DIFFERENT)])
def test_later_exports_cost_the_same_two_collectives_on_64_ranks_as_on_8(families, first):
    later = []
    for size in (8, 64):
        world = SimulatedWorld(size)
        assert names(export(world, families)[1]) == first
        later.append(export(world, families)[1])
        assert names(later[-1]) == NEXT
    assert later[0] == later[1]


def test_an_agreement_costs_eight_bytes_a_rank_and_each_distinct_schema_once():
    sizes = {}
    for size in (16, 64):
        _, collectives = export(SimulatedWorld(size), staged)
        same, hashes, lengths, schemas, again = (nbytes for _, nbytes in collectives[2:-2])
        assert (same, hashes, again) == (32, 8 * size, 32)
        assert lengths == 8 * 2 * STAGES
        sizes[size] = schemas
    assert sizes[16] == sizes[64]


def test_every_rank_is_told_the_pooled_answer():
    results, _ = export(SimulatedWorld(32), staged)
    assert all(result == results[0] for result in results)
    contributing = [rank for rank in range(32) if rank // STAGES % 2 == 0]
    assert results[0]["stats"]["metric_7/avg"] == repr(sum(contributing) / len(contributing))
    for layer in range(2 * STAGES):
        ranks = range(layer // 2, 32, STAGES)
        assert results[0]["moe"][f"/{layer}"] == repr([float(sum(ranks)), float(len(ranks))])


def test_a_name_for_every_rank_is_bounded_and_costs_only_the_rare_names(monkeypatch):
    monkeypatch.setattr(agreement, "LIMIT", 4000)
    world = SimulatedWorld(200)

    def families(rank):
        return {"stats": contents(everywhere=[1.0], **{f"only_here_{rank}": [1.0]})}

    with heard() as messages:
        for calls in (DIFFERENT, NEXT):
            results, collectives = export(world, families)
            assert names(collectives) == calls
            assert max(nbytes for _, nbytes in collectives) < 3 * 8192
            metrics = results[0]["stats"]
            assert metrics["everywhere/avg"] == "1.0"
            assert 3 * 30 < len(metrics) < 3 * 60
    (message,) = messages
    assert "too many names of metrics" in message


def test_one_rank_alone_can_be_run_again():
    world = SimulatedWorld(8)
    results, _ = export(world, staged)
    for rank in (0, 5):
        again = world.replay(lambda group: told_of(reduce(staged(group.rank), group, "export")), rank)
        assert again == results[rank]


def test_one_rank_goes_on_alone_as_it_does_among_the_others():
    everybody, alone = SimulatedWorld(8), SimulatedWorld(8)
    export(everybody, staged)
    (result,) = alone.run(lambda group: told_of(reduce(staged(group.rank), group, "export")), alone_after=7)
    for whole, part in zip(everybody.collectives[:-2], alone.collectives[:-2]):
        assert torch.equal(whole.value, part.value)
    assert result["moe"]["/0"] == repr([0.0, 1.0])


# -- the simulation itself fails where a real group would hang or abort


def test_ranks_that_do_not_call_the_same_collectives_fail():
    def fewer(group):
        if group.rank:
            dist.all_reduce(torch.ones(2), group=group)

    def another_size(group):
        dist.all_reduce(torch.ones(2 + group.rank), group=group)

    def another_operation(group):
        dist.all_reduce(torch.ones(2), op=(dist.ReduceOp.SUM, dist.ReduceOp.MAX)[group.rank], group=group)

    for job, message in ((fewer, "1 of 2 ranks ended"), (another_size, "rank 1"), (another_operation, "rank 1")):
        with pytest.raises(AssertionError, match=message):
            SimulatedWorld(2).run(job)


def test_a_nan_in_a_maximum_fails():
    with pytest.raises(AssertionError, match="rank 0"):
        SimulatedWorld(2).run(
            lambda group: dist.all_reduce(torch.tensor([torch.nan]), op=dist.ReduceOp.MAX, group=group)
        )
