"""Decisions over time, against NumPy over every window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.findings.windows import compare_with_past, find_episode, follow_best, skip_warm_up, smooth

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(VALUES, st.integers(1, 9))
def test_smooth_is_the_median_of_the_last_values(values, width):
    expected = [np.median(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]
    np.testing.assert_allclose(smooth(values, width), expected)


@given(VALUES, st.integers(1, 12), st.integers(1, 6))
def test_the_past_is_what_lies_before_the_gap(values, least, gap):
    judged = compare_with_past(values, lambda _at, _past: False, least=least, gap=gap)
    for position, (past, is_off) in enumerate(judged):
        before = values[: max(0, position - gap + 1)]
        assert not is_off
        assert (past is None) == (len(before) < least)
        if past is not None:
            assert np.quantile(before, 0.5, method="lower") <= past.median <= np.quantile(before, 0.5, method="higher")


def test_what_is_off_never_becomes_the_past():
    judged = compare_with_past([1.0] * 20 + [9.0] * 50, lambda at, _past: at >= 20)
    assert judged[-1] == ((1.0, 0.0), True)


def test_the_spread_of_normal_noise_is_its_standard_deviation():
    past = compare_with_past(list(np.random.default_rng(0).normal(5, 2, 20_000)), lambda _at, _past: False)[-1].past
    assert past is not None
    assert past.spread == pytest.approx(2, rel=0.03)


@given(VALUES, st.integers(1, 9))
def test_the_best_past_is_the_lowest_median_of_whole_windows(values, width):
    medians = [np.median(values[start : start + width]) for start in range(len(values) - width + 1)]
    for position, best in enumerate(follow_best(values, width)):
        known = medians[: max(0, position - width + 1)]
        assert best == (pytest.approx(min(known)) if known else None)


@pytest.mark.parametrize(
    ("flags", "exports", "expected"),
    [
        ("..xxx..", 3, (2, 4, 4)),
        ("..xx.xx", 3, None),
        ("xxxx..xxx.", 3, (0, 2, 8)),
        ("..x....", 1, (2, 2, 2)),
        ("", 1, None),
    ],
)
def test_an_episode_reaches_from_the_first_to_the_last_long_stretch(flags, exports, expected):
    assert find_episode([flag == "x" for flag in flags], exports) == expected


def test_the_warm_up_is_that_of_every_start():
    assert skip_warm_up([10, 20, 30, 40, 50, 60], [40], 2) == [True, True, False, True, True, False]
