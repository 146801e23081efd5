"""Numbers that are derived from reduced sums, against NumPy over all data at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist

from areal_callbacks.core.formulas import formula
from areal_callbacks.core.tracker import StatsTracker

DATA = np.array([1.0, -2.0, 4.0, 0.5, -8.0, 16.0])


@formula(width=2)
def root_mean_square(sums):
    count, squares = sums
    return {"rms": math.sqrt(squares / count)} if count else {}


@formula(width=2)
def mean_square(sums):
    count, squares = sums
    return {"ms": squares / count}


def record(tracker, values, name="loss", rule=root_mean_square):
    values = torch.as_tensor(values)
    tracker.sums(rule, torch.stack((torch.tensor(float(len(values))).double(), values.square().sum())), name)


def expected(data=DATA):
    return pytest.approx(math.sqrt(np.square(data).mean()), rel=1e-12)


def test_sums_add_over_batches_of_any_size():
    tracker = StatsTracker("actor")
    with tracker.scope("update"):
        for batch in (DATA[:1], DATA[1:4], DATA[4:]):
            record(tracker, batch)
    assert tracker.export() == {"actor/update/loss/rms": expected()}


def export_a_part(group):
    """Unequal parts, the second time with a rank that has nothing."""
    tracker, rank = StatsTracker(), dist.get_rank(group)
    record(tracker, DATA[:1] if rank else DATA[1:])
    exports = [tracker.export(reduce_group=group)]
    if rank:
        record(tracker, DATA[:2])
    return [*exports, tracker.export(reduce_group=group)]


def test_sums_add_over_ranks(two_ranks):
    first, second = two_ranks.run(export_a_part)
    assert first == second
    assert first == [{"loss/rms": expected()}, {"loss/rms": expected(DATA[:2])}]


def test_what_the_sums_cannot_tell_is_absent():
    tracker = StatsTracker()
    record(tracker, DATA[:0])
    tracker.scalar(lr=0.5)
    assert tracker.export() == {"lr": 0.5, "lr__count": 1.0}


def test_two_formulas_share_a_key_and_one_formula_has_many():
    tracker = StatsTracker()
    record(tracker, DATA[:2])
    record(tracker, DATA[2:], "other")
    record(tracker, DATA[:2], rule=mean_square)
    record(tracker, DATA[:2], "")
    assert tracker.export() == {
        **{"loss/rms": expected(DATA[:2]), "other/rms": expected(DATA[2:]), "rms": expected(DATA[:2])},
        **{"loss/ms": pytest.approx(np.square(DATA[:2]).mean())},
    }


def test_a_derived_value_replaces_a_recorded_one_with_a_message(caplog):
    tracker = StatsTracker()
    record(tracker, DATA)
    tracker.scalar(**{"loss/rms": 100.0})
    assert tracker.export()["loss/rms"] == expected()
    assert ["'loss/rms' is recorded and derived" in message for message in caplog.messages] == [True]


def test_the_callers_sums_may_change_afterwards():
    tracker, sums = StatsTracker(), torch.tensor([1.0, 4.0], dtype=torch.float64)
    for _ in range(2):
        tracker.sums(root_mean_square, sums, "loss")
    sums.fill_(100.0)
    assert tracker.export() == {"loss/rms": 2.0}
