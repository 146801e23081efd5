"""Keys with a process group of their own, and ranks that export the same keys; two real processes, values by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.session import MetricsSession
from areal_callbacks.topology import Topology

NAN = math.nan
MASK = torch.tensor([True, True, False])


class Collectives(TorchDispatchMode):
    """Counts the collective operations inside the block."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.namespace == "c10d"
        return func(*args, **(kwargs or {}))


def groups_of(rank):
    """A second group of both ranks, and one of this rank alone."""
    pair, *alone = dist.new_group([0, 1]), dist.new_group([0]), dist.new_group([1])
    return pair, alone[rank]


def told(exports):
    """Exports with NaN that equals NaN."""
    return [{name: repr(value) for name, value in export.items()} for export in exports]


# -- what is reduced over which group


def record_in_every_way(world):
    rank = dist.get_rank(world)
    _, alone = groups_of(rank)
    tracker, values = StatsTracker(), torch.tensor([1.0, 3.0, 100.0]) * (10**rank)
    for own in ({}, {"reduce_group": alone}):
        with tracker.scope("own" if own else "shared"):
            tracker.scalar(lr=float(rank), **own)
            tracker.denominator(valid=MASK, **own)
            tracker.stat("valid", loss=values, **own)
            tracker.stat("valid", ReduceType.SUM, total=values, **own)
            tracker.stat_compact(MASK, ReduceType.MAX, high=values, **own)
    return [tracker.export(reduce_group=world), tracker.export(reduce_group=world)]


def test_a_key_with_a_group_of_its_own_is_reduced_over_it(two_ranks):
    shared = {
        **{"shared/lr": 0.5, "shared/lr__count": 2.0, "shared/valid": 4.0, "shared/total": 44.0, "shared/high": 30.0},
        **{"shared/loss/avg": 11.0, "shared/loss/min": 1.0, "shared/loss/max": 30.0},
    }
    for rank, exports in enumerate(two_ranks.run(record_in_every_way)):
        scale = 10.0**rank
        own = {
            **{"own/lr": float(rank), "own/lr__count": 1.0, "own/valid": 2.0},
            **{"own/total": 4 * scale, "own/high": 3 * scale},
            **{"own/loss/avg": 2 * scale, "own/loss/min": scale, "own/loss/max": 3 * scale},
        }
        assert exports == [shared | own, {}]


def beyond_the_group_of_the_export(world):
    pair, alone = groups_of(dist.get_rank(world))
    tracker, rank = StatsTracker(), dist.get_rank(world)
    exports = []
    for reduce_group in (alone, None):
        tracker.scalar(reduce_group=pair, everywhere=float(rank))
        tracker.scalar(here=float(rank))
        exports.append(tracker.export(reduce_group=reduce_group))
    return exports


def test_a_group_may_reach_beyond_that_of_the_export_if_every_part_brings_it(two_ranks):
    for rank, exports in enumerate(two_ranks.run(beyond_the_group_of_the_export)):
        expected = {"everywhere": 0.5, "everywhere__count": 2.0, "here": float(rank), "here__count": 1.0}
        assert exports == [expected, expected]


def only_one_rank_has_some(world):
    rank = dist.get_rank(world)
    pair, alone = groups_of(rank)
    tracker = StatsTracker()
    if rank == 1:
        tracker.scalar(reduce_group=pair, x=3.0)
        tracker.scalar(reduce_group=alone, y=4.0)
    exports = [tracker.export(reduce_group=world)]
    if rank == 0:
        tracker.scalar(reduce_group=pair, x=5.0)
    return [*exports, tracker.export(key="x", reduce_group=world), tracker.export(reduce_group=world)]


def test_no_rank_waits_for_another_that_has_nothing(two_ranks):
    first, second = two_ranks.run(only_one_rank_has_some)
    x, y = {"x": 3.0, "x__count": 1.0}, {"y": 4.0, "y__count": 1.0}
    assert first == [x, {"x": 5.0, "x__count": 1.0}, {}]
    assert second == [x | y, {"x": 5.0, "x__count": 1.0}, {}]


def record_in_opposite_orders(world):
    rank = dist.get_rank(world)
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    tracker = StatsTracker()
    for number, group in list(enumerate(groups))[:: 1 - 2 * rank]:
        tracker.scalar(reduce_group=group, **{f"k{number}": float(number + rank)})
    return tracker.export(reduce_group=world)


def test_every_rank_reduces_the_groups_in_the_same_order(two_ranks):
    first, second = two_ranks.run(record_in_opposite_orders)
    assert first == second == {**{f"k{n}": n + 0.5 for n in range(3)}, **{f"k{n}__count": 2.0 for n in range(3)}}


def record_in_two_groups(world):
    rank = dist.get_rank(world)
    pair, alone = groups_of(rank)
    tracker, exports = StatsTracker(), []
    tracker.scalar(reduce_group=alone, x=float(rank))
    tracker.scalar(x=float(rank))  # no group: that of the key stays
    exports.append(tracker.export(reduce_group=world))
    tracker.scalar(reduce_group=alone, x=float(rank))
    tracker.scalar(reduce_group=pair, x=float(rank))  # the last one counts
    exports.append(tracker.export(reduce_group=world))
    for key in (None, "x"):  # an export forgets the group
        tracker.scalar(reduce_group=alone, x=float(rank))
        exports.append(tracker.export(key, reduce_group=world))
        tracker.scalar(x=float(rank))
        exports.append(tracker.export(reduce_group=world))
    if rank == 0:
        tracker.scalar(reduce_group=pair, x=1.0)  # the other rank's x belongs to the group of the export
    else:
        tracker.scalar(x=3.0)
    exports.append(tracker.export(reduce_group=world))
    return [(export["x"], export["x__count"]) for export in exports]


def test_the_last_group_of_a_key_counts_until_the_export(two_ranks):
    for rank, exports in enumerate(two_ranks.run(record_in_two_groups)):
        assert exports == [(rank, 2.0), (0.5, 4.0), *[(rank, 1.0), (0.5, 2.0)] * 2, (2.0, 2.0)]


def record_outside_a_group(world):
    first = dist.new_group([0])  # no group for the second rank
    tracker, rank = StatsTracker(), dist.get_rank(world)
    tracker.scalar(reduce_group=first, x=float(rank))
    exports = [tracker.export(reduce_group=world)]
    tracker.scalar(x=float(rank))
    return [*exports, tracker.export(reduce_group=first)]


def test_a_rank_outside_a_group_reduces_alone(two_ranks):
    for rank, exports in enumerate(two_ranks.run(record_outside_a_group)):
        assert exports == [{"x": float(rank), "x__count": 1.0}] * 2


# -- the same keys on all ranks


def export_with_the_same_keys(world):
    rank = dist.get_rank(world)
    pair, alone = groups_of(rank)
    tracker, exports = StatsTracker(), []
    for reduce_group in (None, alone, world):
        if rank == 0:
            tracker.scalar(lr=1.0)
            tracker.denominator(valid=MASK)
            tracker.stat("valid", loss=torch.ones(3))
            tracker.stat("valid", ReduceType.SUM, total=torch.ones(3))
        else:
            tracker.scalar(reduce_group=alone, mine=2.0)
            tracker.scalar(reduce_group=pair, both=3.0)
            tracker.stat_compact(torch.zeros(3, dtype=torch.bool), loss=torch.ones(3))
        exports.append(tracker.export(reduce_group=reduce_group, key_sync_group=world))
    return told(exports)


def test_all_ranks_of_a_key_sync_group_export_the_same_keys(two_ranks):
    first, second = two_ranks.run(export_with_the_same_keys)
    both = {"both": 3.0, "both__count": 1.0}
    recorded = {
        **{"lr": 1.0, "lr__count": 1.0, "valid": 2.0, "total": 2.0},
        **{"loss/avg": 1.0, "loss/min": 1.0, "loss/max": 1.0},
    }
    absent = dict.fromkeys(recorded, NAN) | {"lr__count": 0.0, "valid": 0.0, "total": 0.0}
    mine, not_mine = {"mine": 2.0, "mine__count": 1.0}, {"mine": NAN, "mine__count": 0.0}
    assert first == told([recorded | both | not_mine] * 3)
    assert second == told([absent | both | mine, absent | both | mine, recorded | both | mine])
    assert [list(export) for export in first] == [list(export) for export in second]  # in the same order, too


def wrong_key_sync_group(world):
    _, alone = groups_of(dist.get_rank(world))
    tracker = StatsTracker()
    tracker.scalar(x=1.0)
    with pytest.raises(ValueError, match=r"key_sync_group must hold every rank of reduce_group; ranks .* are missing"):
        tracker.export(reduce_group=world, key_sync_group=alone)
    with pytest.raises(ValueError, match="key_sync_group must be a process group"):
        tracker.export(key_sync_group="world")
    return tracker.export()


def test_a_key_sync_group_that_is_too_small_is_refused_before_anything_is_taken(two_ranks):
    assert two_ranks.run(wrong_key_sync_group) == [{"x": 1.0, "x__count": 1.0}] * 2


# -- what it costs


def count_collectives(world):
    rank = dist.get_rank(world)
    pair, alone = groups_of(rank)
    counts = []
    for own, key_sync_group in (
        ([], None),
        ([], world),
        ([world], None),
        ([pair], None),
        ([pair, alone], None),
        ([pair, world], world),
    ):
        tracker = StatsTracker()
        for _ in range(3):
            tracker.scalar(shared=1.0)
            for number, group in enumerate(own):
                tracker.scalar(reduce_group=group, **{f"own_{number}": 1.0})
            with Collectives() as collectives:
                tracker.export(reduce_group=world, key_sync_group=key_sync_group)
        counts.append(collectives.count)
    return counts


def test_an_export_costs_two_collectives_for_each_group(two_ranks):
    assert two_ranks.run(count_collectives) == [[2, 2, 2, 4, 6, 4]] * 2


# -- several trackers, sessions


def export_all_of_several_trackers(world):
    rank = dist.get_rank(world)
    _, alone = groups_of(rank)
    stats_tracker.collect_all()
    with stats_tracker.scope("rollout"):
        stats_tracker.scalar(reduce_group=alone, reward=float(rank))
    stats_tracker.get("rollout").scalar(reduce_group=alone, reward=float(rank) + 2)
    stats_tracker.scalar(lr=float(rank))
    return stats_tracker.export_all(reduce_group=world, key_sync_group=world)


def test_equal_keys_of_two_trackers_are_pooled_within_their_group(two_ranks):
    for rank, export in enumerate(two_ranks.run(export_all_of_several_trackers)):
        assert export == {"lr": 0.5, "lr__count": 2.0, "rollout/reward": rank + 1.0, "rollout/reward__count": 2.0}


def export_from_a_session(world, folder):
    rank = dist.get_rank(world)
    pair, alone = groups_of(rank)
    session = MetricsSession(output_dir=f"{folder}/{rank}", report=False)
    session.attach(torch.nn.Linear(1, 1), topology=Topology(world, stats=rank == 0))
    for _ in range(2):
        session.tracker.scalar(shared=float(rank))
        session.tracker.scalar(reduce_group=pair, both=float(rank))
        session.tracker.scalar(reduce_group=alone, mine=float(rank))
        session.reduce(measured=False)
    metrics = session.emit(1).metrics
    session.close()
    return metrics


def test_a_session_reduces_such_keys_over_their_groups_also_where_other_stats_do_not_count(two_ranks, tmp_path):
    for rank, metrics in enumerate(two_ranks.run(export_from_a_session, str(tmp_path))):
        assert metrics == {"shared": 0.0, "both": 0.5, "mine": float(rank)}
