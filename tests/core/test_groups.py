"""Process groups under names that all their members share."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from areal_callbacks.core.groups import as_group, group_named, name_of


def find_groups_by_name(world):
    rank = dist.get_rank(world)
    pair, *alone = dist.new_group([0, 1]), dist.new_group([0]), dist.new_group([1])
    mine = {"world": world, "pair": pair, f"alone{rank}": alone[rank]}
    names = {name: name_of(group) for name, group in mine.items()}
    gathered = [None, None]
    dist.all_gather_object(gathered, names, group=world)
    found = {name: group_named(theirs) for part in gathered for name, theirs in part.items()}
    return {name: group is mine.get(name) for name, group in found.items()}, names


def test_a_group_has_one_name_on_all_its_ranks_and_is_found_by_it(two_ranks):
    (found, first), (also_found, second) = two_ranks.run(find_groups_by_name)
    assert found == also_found == dict.fromkeys(("world", "pair", "alone0", "alone1"), True)
    assert first["world"] == second["world"]
    assert first["pair"] == second["pair"]
    assert len({*first.values(), *second.values()}) == 4


def take_groups(world):
    first = dist.new_group([0])
    return as_group(world) is world, as_group(first) is first, as_group(first) is None, as_group(None) is None


def test_a_rank_that_a_group_leaves_out_reduces_alone(two_ranks):
    assert two_ranks.run(take_groups) == [(True, True, False, True), (True, False, True, True)]


@pytest.mark.parametrize("thing", ["dp", 3, torch.ones(1), object()])
def test_something_that_is_no_group_is_refused(thing):
    with pytest.raises(ValueError, match="over must be a process group or None"):
        as_group(thing, "over")
