"""Series with fewer points and the same extrema; snapshots with the same ends and the same worst."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.report.history import Series
from areal_callbacks.report.snapshots import Snapshot, choose
from areal_callbacks.report.thinning import POINTS_PER_REPORT, count_buckets, thin

numbers = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))


@given(st.lists(st.one_of(st.none(), numbers), min_size=1, max_size=200), st.integers(1, 30))
def test_every_bucket_keeps_its_extrema_where_they_were(values: list[float | None], buckets: int) -> None:
    steps = len(values)
    present = {place: value for place, value in enumerate(values) if value is not None}
    thinned = thin(Series(list(present), list(present.values())), steps, buckets)
    kept = dict(zip(thinned.indices, thinned.values))
    assert thinned.indices == sorted(kept)
    assert all(str(present[place]) == str(value) for place, value in kept.items())
    assert not present or {min(present), max(present)} <= kept.keys()
    for bucket in range(buckets):
        inside = range(bucket * steps // buckets, (bucket + 1) * steps // buckets)
        before = np.array([present[place] for place in inside if place in present])
        after = np.array([kept[place] for place in inside if place in kept])
        for odd in (np.isnan, np.isposinf, np.isneginf):
            assert odd(before).any() == odd(after).any()
        finite_before, finite_after = before[np.isfinite(before)], after[np.isfinite(after)]
        assert len(finite_before) == 0 or finite_before.min() == finite_after.min()
        assert len(finite_before) == 0 or finite_before.max() == finite_after.max()


def test_a_long_series_becomes_short() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    values[12_345] = 99.0
    thinned = thin(Series(list(range(20_000)), values.tolist()), 20_000, 500)
    assert len(thinned.values) <= 1002
    assert thinned.values[thinned.indices.index(12_345)] == 99.0


@pytest.mark.parametrize(
    ("steps", "series", "runs"), [(400, 100, 1), (2000, 100, 1), (20_000, 90, 1), (20_000, 400, 3)]
)
def test_points_of_a_report_are_bounded(steps: int, series: int, runs: int) -> None:
    buckets = count_buckets(steps, series, runs)
    points = steps if buckets == steps else 2 * buckets
    assert points * series * runs <= POINTS_PER_REPORT
    assert points >= min(steps, 200)


def test_chosen_snapshots_hold_the_ends_and_the_worst() -> None:
    shots = [Snapshot(step, {("", 0): array("I", [1, 1 + (step == 333)])}) for step in range(1000)]
    for count in (3, 10, 100):
        chosen = [shot.step for shot in choose(shots, count)]
        assert len(chosen) <= count
        assert {0, 333, 999} <= set(chosen)
    assert choose(shots[:5], 10) == shots[:5]
