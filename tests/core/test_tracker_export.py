"""Names, timings, exports of one key or all, and mistakes that leave nothing behind."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType


def record(tracker, reduce_type=None, **values):
    for name, numbers in values.items():
        tensor = torch.as_tensor(numbers)
        tracker.stat_compact(torch.ones_like(tensor, dtype=torch.bool), reduce_type, **{name: tensor})


def same(first, second):
    """Equality of exports in which NaN equals NaN."""
    return {key: str(value) for key, value in first.items()} == {key: str(value) for key, value in second.items()}


# -- errors leave nothing behind


MISTAKES = {
    "shape": lambda t: t.stat("valid", x=torch.ones(3), y=torch.ones(4)),
    "broadcastable shape": lambda t: t.stat("valid", x=torch.ones(3), y=torch.ones(1, 3)),
    "unknown denominator": lambda t: t.stat("other", x=torch.ones(3)),
    "no tensor": lambda t: t.stat("valid", x=torch.ones(3), y=1.0),
    "float mask": lambda t: t.denominator(new=torch.ones(3, dtype=torch.bool), bad=torch.ones(3)),
    "list mask": lambda t: t.denominator(new=torch.ones(3, dtype=torch.bool), bad=[True]),
    "float mask given directly": lambda t: t.stat_compact(torch.ones(3), x=torch.ones(3)),
    "kind": lambda t: t.stat("valid", ReduceType.SUM, x=torch.ones(3), loss=torch.ones(3)),
    "scalar as stat": lambda t: t.stat("valid", x=torch.ones(3), lr=torch.ones(3)),
    "stat as scalar": lambda t: t.scalar(new=1.0, loss=1.0),
    "denominator as scalar": lambda t: t.scalar(new=1.0, valid=1.0),
    "scalar as denominator": lambda t: t.denominator(new=torch.ones(3, dtype=torch.bool), lr=torch.ones(3) > 0),
    "name of a component": lambda t: t.scalar(**{"new": 1.0, "loss/avg": 1.0}),
    "name of a count": lambda t: t.scalar(lr__count=1.0),
    "no process group": lambda t: t.scalar(reduce_group="world", new=1.0),
    "component of a name": lambda t: t.stat("valid", x=torch.ones(3), **{"sub": torch.ones(3)}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_caught_mistake_leaves_nothing_behind(mistake):
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([True, True, False]))
    tracker.denominator(valid=torch.tensor([False, False, True]))
    tracker.stat("valid", ReduceType.SUM, total=torch.tensor([1.0, 2.0, 4.0]))
    tracker.stat("valid", loss=torch.tensor([1.0, 2.0, 3.0]))
    tracker.scalar(**{"lr": 0.1, "sub/min": 1.0})
    before = tracker.export(reset=False)
    with pytest.raises(ValueError):
        MISTAKES[mistake](tracker)
    assert tracker.export(reset=False) == before
    tracker.stat("valid", ReduceType.AVG, x=torch.tensor([4.0, 6.0, 0.0]), y=torch.zeros(3))  # over the first mask
    tracker.stat("valid", ReduceType.SUM, total=torch.tensor([1.0, 2.0, 4.0]))  # over the second
    tracker.denominator(new=torch.tensor([True]), bad=torch.tensor([True]))
    assert tracker.export() == {**before, "total": 7.0, "x": 5.0, "y": 0.0, "new": 1.0, "bad": 1.0}


@pytest.mark.parametrize("value", ["1.0", None, 1j, torch.ones(2), torch.tensor(1j), np.ones(2), 10**400])
def test_a_scalar_that_is_no_number_is_refused_and_leaves_nothing_behind(value):
    tracker = StatsTracker()
    tracker.scalar(good=1.0)
    before = tracker.export(reset=False)
    with pytest.raises(ValueError, match="scalar 'bad' must be"):
        tracker.scalar(good=5.0, new=1.0, bad=value)
    assert tracker.export(reset=False) == before


def test_a_key_may_change_its_kind_after_an_export():
    tracker = StatsTracker()
    tracker.scalar(x=1.0)
    tracker.export()
    record(tracker, ReduceType.SUM, x=[1.0, 2.0])
    assert tracker.export() == {"x": 3.0}
    tracker.scalar(x=1.0)
    tracker.export(key="x")
    record(tracker, x=[1.0])
    assert tracker.export() == {"x/avg": 1.0, "x/min": 1.0, "x/max": 1.0}


# -- names


def test_a_named_tracker_prefixes_its_keys_and_slashes_do_not_matter():
    tracker = StatsTracker("/rollout/")
    with tracker.scope("train/"):
        tracker.scalar(reward=1.0)
    assert tracker.export() == {"rollout/train/reward": 1.0, "rollout/train/reward__count": 1.0}


def test_metrics_may_have_the_names_of_python_parameters():
    tracker = StatsTracker()
    tracker.scalar(self=1.0, key=2.0, values=3.0)
    assert tracker.export() == {
        **{"self": 1.0, "self__count": 1.0, "key": 2.0, "key__count": 1.0, "values": 3.0, "values__count": 1.0}
    }


# -- timing


def test_timing_ignores_scope_and_name_and_survives_an_exception():
    tracker = StatsTracker("rollout")
    with tracker.scope("deep"), pytest.raises(KeyError), tracker.record_timing("generate"):
        raise KeyError
    with tracker.record_timing("generate"):
        pass
    values = tracker.export()
    assert values.keys() == {"timeperf/generate", "timeperf/generate__count"}
    assert values["timeperf/generate__count"] == 2.0
    assert 0.0 <= values["timeperf/generate"] < 10.0


def test_timing_measures_seconds():
    tracker = StatsTracker()
    with tracker.record_timing("wait"):
        threading.Event().wait(0.02)
    assert 0.02 <= tracker.export()["timeperf/wait"] < 10.0


# -- export


def test_export_of_one_key_leaves_the_rest():
    tracker = StatsTracker("actor")
    with tracker.scope("update"):
        tracker.scalar(a=1.0, b=2.0)
        record(tracker, x=[1.0, 3.0], y=[5.0], z=[7.0])
        assert tracker.export(key="x") == {
            "actor/update/x/avg": 2.0,
            "actor/update/x/min": 1.0,
            "actor/update/x/max": 3.0,
        }
        assert tracker.export(key="a", reset=False) == {"actor/update/a": 1.0, "actor/update/a__count": 1.0}
        assert tracker.export(key="a") == {"actor/update/a": 1.0, "actor/update/a__count": 1.0}
        record(tracker, x=[9.0])
    rest = tracker.export()
    names = {name.removeprefix("actor/update/").partition("/")[0] for name in rest}
    assert names == {"b", "b__count", "x", "y", "z"}
    assert [rest[f"actor/update/{name}/max"] for name in "xyz"] == [9.0, 5.0, 7.0]


def test_export_of_a_timing_ignores_the_scope_too():
    tracker = StatsTracker("actor")
    with tracker.record_timing("step"):
        pass
    with tracker.scope("anything"):
        assert tracker.export(key="timeperf/step").keys() == {"timeperf/step", "timeperf/step__count"}
    assert tracker.export() == {}


def test_a_key_that_nobody_recorded_is_nan_with_a_count_of_zero():
    tracker = StatsTracker("actor")
    with tracker.scope("update"):
        tracker.scalar(a=1.0)
        unknown = tracker.export(key="b", reset=False)
    assert same(unknown, {"actor/update/b": math.nan, "actor/update/b__count": 0.0})
    assert tracker.export() == {"actor/update/a": 1.0, "actor/update/a__count": 1.0}


def test_a_key_that_was_recorded_over_nothing_is_not_unknown():
    tracker = StatsTracker()
    tracker.stat_compact(torch.zeros(2, dtype=torch.bool), x=torch.ones(2))
    assert tracker.export(key="x") == {}


def test_a_denominator_is_exported_alone_too():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([True, False]))
    tracker.stat("valid", x=torch.tensor([1.0, 9.0]))
    assert tracker.export(key="valid") == {"valid": 1.0}
    assert tracker.export() == {"x/avg": 1.0, "x/min": 1.0, "x/max": 1.0}


def test_export_without_reset_keeps_everything():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.ones(2, dtype=torch.bool))
    tracker.stat("valid", x=torch.tensor([1.0, 3.0]))
    first = tracker.export(reset=False)
    assert tracker.export(reset=False) == first
    tracker.stat("valid", x=torch.tensor([5.0, 7.0]))
    assert tracker.export() == {"valid": 2.0, "x/avg": 4.0, "x/min": 1.0, "x/max": 7.0}
