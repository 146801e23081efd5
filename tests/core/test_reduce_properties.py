"""Any split of data over batches, ranks and key sets gives the pooled answer, which NumPy computes in float64."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reductions import over_ranks

from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

KINDS = {
    "spread": ReduceType.AVG_MIN_MAX,
    "mean": ReduceType.AVG,
    "total": ReduceType.SUM,
    "low": ReduceType.MIN,
    "high": ReduceType.MAX,
    "number": ReduceType.SCALAR,
}
SPECIAL = [math.nan, math.inf, -math.inf]
quietly = settings(deadline=None, max_examples=60)
"""No deadline: the machine may be busy."""

values = st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from(SPECIAL), max_size=4)
batches = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), values), max_size=6)
worlds = st.lists(batches, min_size=1, max_size=4)
widths = st.shared(st.integers(1, 3))
vectors = st.lists(
    st.dictionaries(
        st.sampled_from("uvw"), widths.flatmap(lambda n: st.lists(st.integers(0, 2**40), min_size=n, max_size=n))
    ),
    min_size=1,
    max_size=4,
)


def recorded(batches):
    tracker = StatsTracker()
    for key, numbers in batches:
        if KINDS[key] is ReduceType.SCALAR:
            for number in numbers:
                tracker.scalar(**{key: number})
        else:
            tensor = torch.tensor(numbers, dtype=torch.float64)
            padded = torch.cat((tensor, torch.tensor([math.nan], dtype=torch.float64)))
            mask = torch.ones(len(padded), dtype=torch.bool)
            mask[-1] = False
            tracker.stat_compact(mask, KINDS[key], **{key: padded})
    return tracker.collect()


def expected(batches):
    """What an export of all these batches must say."""
    pooled = {}
    for key, numbers in batches:
        pooled.setdefault(key, []).extend(numbers)
    metrics = {}
    for key, numbers in pooled.items():
        array = np.array(numbers, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            if key == "total":
                metrics[key] = array.sum()
            elif array.size:
                metrics |= statistics(key, array)
    return metrics


def statistics(key, array):
    return {
        "spread": lambda: {"spread/avg": array.mean(), "spread/min": array.min(), "spread/max": array.max()},
        "mean": lambda: {"mean": array.mean()},
        "low": lambda: {"low": array.min()},
        "high": lambda: {"high": array.max()},
        "number": lambda: {"number": array.mean(), "number__count": array.size},
    }[key]()


def assert_same(metrics, reference):
    assert metrics.keys() == reference.keys()
    for name, value in reference.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-9, atol=1e-6, err_msg=name)


def new_keys(ranks):
    return over_ranks(*ranks)


def known_keys(ranks):
    return over_ranks(*ranks, exports=2)


WAYS = pytest.mark.parametrize("combine", [new_keys, known_keys])


@quietly
@given(batches)
def test_batches_pool(batches):
    assert_same(recorded(batches).metrics(), expected(batches))


@WAYS
@quietly
@given(world=worlds)
def test_ranks_pool(combine, world):
    result = combine([recorded(batches) for batches in world])
    assert_same(result.metrics(), expected([batch for batches in world for batch in batches]))


@WAYS
@quietly
@given(first=worlds, second=worlds)
def test_ranks_then_time_is_time_then_ranks(combine, first, second):
    size = max(len(first), len(second))
    first, second = ([*world, *[[]] * (size - len(world))] for world in (first, second))
    ranks_first = combine([recorded(b) for b in first]).merge(combine([recorded(b) for b in second]))
    time_first = combine([recorded(a).merge(recorded(b)) for a, b in zip(first, second)])
    reference = expected([batch for batches in [*first, *second] for batch in batches])
    assert_same(ranks_first.metrics(), reference)
    assert_same(time_first.metrics(), reference)


@WAYS
@quietly
@given(ranks=vectors)
def test_vectors_add_and_take_the_maximum(combine, ranks):
    def tensors(rank):
        return {name: torch.tensor(numbers) for name, numbers in rank.items()}

    result = combine([Records(sums=tensors(rank), maxima=tensors(rank)) for rank in ranks])
    for name in {name for rank in ranks for name in rank}:
        columns = list(zip(*(rank[name] for rank in ranks if name in rank)))
        assert result.sums[name].tolist() == [sum(column) for column in columns]
        assert result.maxima[name].tolist() == [max(column) for column in columns]
    assert len(result.sums) == len(result.maxima) == len({name for rank in ranks for name in rank})


# -- the same over real processes


def generated(seed):
    """Batches of two ranks; the keys that a rank records come and go."""
    source = random.Random(seed)

    def batch():
        numbers = [
            source.choice(SPECIAL) if source.random() < 0.05 else source.uniform(-9, 9)
            for _ in range(source.randrange(4))
        ]
        return source.choice(sorted(KINDS)), numbers

    return [[batch() for _ in range(source.randrange(5))] for _ in range(2)]


def reduce_generated(group, cases):
    rank = dist.get_rank(group)
    results = []
    for case in cases:
        reduced = reduce({"stats": recorded(case[rank])}, group, "generated")
        results.append(reduced["stats"].metrics())
    return results


def test_two_processes_pool(two_ranks):
    cases = [generated(seed) for seed in range(60)]
    first, second = two_ranks.run(reduce_generated, cases)
    assert repr(first) == repr(second)
    for metrics, case in zip(first, cases):
        assert_same(metrics, expected([batch for batches in case for batch in batches]))
