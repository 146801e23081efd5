"""Which mask a stat is recorded over."""

from __future__ import annotations

import pytest
import torch

from areal_callbacks.core.masks import MOST_WAITING
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType


def tokens(*chosen):
    """A mask of four tokens."""
    return torch.tensor([index in chosen for index in range(4)])


DIGITS = torch.tensor([1.0, 10.0, 100.0, 1000.0])  # a sum tells which tokens were chosen


def totals(tracker, denominator="m", **factors):
    """Record sums of the digits, times a factor."""
    tensors = {name: factor * DIGITS for name, factor in factors.items()}
    tracker.stat(denominator, ReduceType.SUM, **tensors)


def test_masks_and_stats_in_turn():
    tracker = StatsTracker()
    for token in (0, 2, 1):
        tracker.denominator(m=tokens(token))
        totals(tracker, x=1, y=2)
    assert tracker.export() == {"m": 3.0, "x": 111.0, "y": 222.0}


def test_the_masks_of_a_burst_wait_for_the_stats_of_every_key():
    tracker = StatsTracker()
    for token in range(3):
        tracker.denominator(m=tokens(token))
    for name in "xyz":
        for factor in (1, 2, 3):
            totals(tracker, **{name: factor})
    assert tracker.export() == {"m": 3.0, "x": 321.0, "y": 321.0, "z": 321.0}


def test_a_burst_follows_a_burst():
    tracker = StatsTracker()
    for burst in ((0, 1), (2, 3), (1,)):
        for token in burst:
            tracker.denominator(m=tokens(token))
        for name in "xy":
            for _ in burst:
                totals(tracker, **{name: 1})
    assert tracker.export() == {"m": 5.0, "x": 1121.0, "y": 1121.0}


def test_more_stats_than_masks_take_the_latest():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    tracker.denominator(m=tokens(1))
    for factor in (1, 2, 3, 4):
        totals(tracker, x=factor)
    assert tracker.export() == {"m": 2.0, "x": 1 + 20 + 30 + 40}


def test_a_stat_does_not_wait_for_a_later_mask():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    totals(tracker, x=1)
    totals(tracker, x=2)
    tracker.denominator(m=tokens(1))
    totals(tracker, x=3)
    assert tracker.export() == {"m": 2.0, "x": 1 + 2 + 30}


def test_a_stat_counts_from_the_first_mask_also_after_others_were_given():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    totals(tracker, x=1)
    tracker.denominator(m=tokens(1))
    totals(tracker, late=1)  # the first of its key: over the first mask, as in AReaL
    totals(tracker, x=1)
    assert tracker.export() == {"m": 2.0, "x": 11.0, "late": 1.0}


def test_a_key_that_joins_when_its_masks_are_gone_goes_on_with_the_others():
    tracker = StatsTracker()
    for number, order in enumerate((["x"], ["x", "late"], ["late", "x"])):
        tracker.denominator(m=tokens(number))
        for name in order:
            totals(tracker, **{name: 1})
    assert tracker.export() == {"m": 3.0, "x": 111.0, "late": 110.0}


def test_one_call_may_hold_keys_that_belong_to_different_masks():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    tracker.denominator(m=tokens(1))
    totals(tracker, x=1)
    totals(tracker, x=1, y=1)
    assert tracker.export() == {"m": 2.0, "x": 11.0, "y": 1.0}


def test_the_order_is_that_of_the_key_whatever_the_denominator():
    tracker = StatsTracker()
    for token in range(3):
        tracker.denominator(m=tokens(token), n=tokens(3))
        totals(tracker, "m" if token != 1 else "n", x=1)
    assert tracker.export() == {"m": 3.0, "n": 3.0, "x": 1 + 1000 + 100}


def test_a_mask_is_that_of_the_call():
    tracker = StatsTracker()
    mask = tokens(0, 1)
    tracker.denominator(m=mask)
    mask.fill_(False)
    totals(tracker, x=1)
    assert tracker.export() == {"m": 2.0, "x": 11.0}


def test_stats_of_different_shapes_follow_their_masks():
    tracker = StatsTracker()
    for length in (2, 3):
        tracker.denominator(m=torch.ones(length, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"shape \[3\], the mask it belongs to \[2\]"):
        tracker.stat("m", ReduceType.SUM, x=torch.ones(3))
    for length in (2, 3):
        tracker.stat("m", ReduceType.SUM, x=torch.ones(length))
    assert tracker.export() == {"m": 5.0, "x": 5.0}


# -- exports


def test_an_export_forgets_the_masks():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    assert tracker.export() == {"m": 1.0}
    with pytest.raises(ValueError, match=r"unknown denominator 'm'.*none since the last export"):
        totals(tracker, x=1)
    assert tracker.export() == {}
    tracker.denominator(m=tokens(1))
    totals(tracker, x=1)
    assert tracker.export() == {"m": 1.0, "x": 10.0}


def test_the_order_begins_anew_with_every_export():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    totals(tracker, x=1)
    tracker.export()
    for token in (1, 2):
        tracker.denominator(m=tokens(token))
    totals(tracker, x=1)
    assert tracker.export() == {"m": 2.0, "x": 10.0}


def test_an_export_without_reset_keeps_masks_and_order():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    tracker.denominator(m=tokens(1))
    totals(tracker, x=1)
    tracker.export(reset=False)
    totals(tracker, x=1)
    assert tracker.export() == {"m": 2.0, "x": 11.0}


def test_an_export_of_one_key_keeps_its_place_in_the_order():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0))
    tracker.denominator(m=tokens(1))
    totals(tracker, x=1, y=1)
    assert tracker.export(key="x") == {"x": 1.0}
    totals(tracker, x=1, y=1)
    assert tracker.export() == {"m": 2.0, "x": 10.0, "y": 11.0}


def test_an_export_of_a_denominator_forgets_its_masks_alone():
    tracker = StatsTracker()
    tracker.denominator(m=tokens(0), n=tokens(1))
    totals(tracker, "m", x=1)
    assert tracker.export(key="m") == {"m": 1.0}
    with pytest.raises(ValueError, match=r"unknown denominator 'm'.*defined: n"):
        totals(tracker, "m", x=1)
    totals(tracker, "n", y=1)
    for token in (2, 3):
        tracker.denominator(m=tokens(token))
        totals(tracker, "m", x=1)
    assert tracker.export() == {"m": 2.0, "n": 1.0, "x": 1101.0, "y": 10.0}


# -- masks that no stat comes for


def test_masks_that_are_never_used_are_bounded(caplog):
    tracker = StatsTracker()
    for number in range(MOST_WAITING + 45):
        tracker.denominator(m=tokens(number % 4))
    for _ in range(2):
        totals(tracker, x=1)  # the first and all that follow: over the latest
        tracker.denominator(m=tokens(3))
    (message,) = caplog.messages
    assert "256 masks of 'm' waited" in message
    assert tracker.export() == {"m": MOST_WAITING + 47.0, "x": 1001.0}


def test_a_full_burst_is_paired():
    tracker = StatsTracker()
    for number in range(MOST_WAITING):
        tracker.denominator(m=tokens(number % 4))
    for number in range(MOST_WAITING):
        totals(tracker, x=number)
    assert tracker.export()["x"] == sum(number * 10.0 ** (number % 4) for number in range(MOST_WAITING))


# -- scopes


def test_a_denominator_is_found_in_the_enclosing_scopes_and_the_nearest_wins():
    tracker = StatsTracker("actor")
    tracker.denominator(valid=torch.tensor([True, True]))
    with tracker.scope("ppo"):
        tracker.stat("valid", ReduceType.SUM, outer=torch.tensor([1.0, 2.0]))
        tracker.denominator(valid=torch.tensor([True, False]))
        with tracker.scope("update/inner"):
            tracker.stat("valid", ReduceType.SUM, nearest=torch.tensor([1.0, 2.0]))
    expected = {
        "actor/valid": 2.0,
        "actor/ppo/valid": 1.0,
        "actor/ppo/outer": 3.0,
        "actor/ppo/update/inner/nearest": 1.0,
    }
    assert tracker.export() == expected


def test_a_denominator_of_an_inner_or_other_scope_is_unknown():
    tracker = StatsTracker()
    with tracker.scope("inner"):
        tracker.denominator(valid=torch.ones(1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"unknown denominator 'valid'.*inner/valid"):
        tracker.stat("valid", x=torch.ones(1))
