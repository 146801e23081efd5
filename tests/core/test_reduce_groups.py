"""Process groups that come, go and interleave, over real processes."""

from __future__ import annotations

import torch.distributed as dist
from support.reductions import (
    NEXT,
    SAME,
    Operations,
    contents,
    summary,
    told,
)

from areal_callbacks.core.reduce import buffer_device, reduce


def two_groups(_group):
    rank = dist.get_rank()
    first, second = dist.new_group(), dist.new_group()
    results = []
    for step in range(3):
        keys = {"a": [1.0], **({"b": [2.0]} if step else {})}
        results.append(told(reduce({"stats": contents(**keys)}, first, "x")["stats"]))
        results.append(told(reduce({"stats": contents(c=[float(rank)])}, second, "x")["stats"]))
        results.append(told(reduce({"stats": contents(d=[float(rank)])}, second, "y")["stats"]))
    return results


def test_groups_and_channels_interleave_without_knowing_each_other(two_ranks):
    a, b = summary("a", 1.0, 1.0, 1.0), summary("b", 2.0, 2.0, 2.0)
    c, d = summary("c", 0.5, 0.0, 1.0), summary("d", 0.5, 0.0, 1.0)
    for results in two_ranks.run(two_groups):
        assert results == [a, c, d, {**a, **b}, c, d, {**a, **b}, c, d]


def remade(_group):
    """A group that saw many keys, and its successors."""
    sizes = []
    for count in (600, 2, 600):
        mine = dist.new_group()
        for _ in range(2):
            operations = Operations()
            keys = {f"k{index}": [1.0] for index in range(count)}
            with operations.counting():
                result = reduce({"stats": contents(**keys)}, mine, "x")
            sizes.append((len(result["stats"].metrics()), operations.calls))
        dist.destroy_process_group(mine)
    return sizes


def test_a_group_made_after_another_was_destroyed_starts_afresh(two_ranks):
    for sizes in two_ranks.run(remade):
        assert sizes == [
            *((1800, SAME), (1800, NEXT), (6, SAME), (6, NEXT), (1800, SAME), (1800, NEXT)),
        ]


def devices(group):
    composite = dist.new_group(backend="cpu:gloo")
    return [dist.get_backend(each) for each in (group, composite)], [
        buffer_device(each).type for each in (group, composite)
    ]


def test_a_group_with_a_backend_for_the_cpu_reduces_there(two_ranks):
    for backends, places in two_ranks.run(devices):
        assert backends == ["gloo", "cpu:gloo"]
        assert places == ["cpu", "cpu"]
