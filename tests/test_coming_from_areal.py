"""What code that moves over from AReaL's tracker relies on; the page's other lines name tests elsewhere."""

from __future__ import annotations

import inspect

import pytest
import torch

from areal_callbacks import stats_tracker
from areal_callbacks.core.types import ReduceType

SIGNATURES = {
    "scalar": [],
    "denominator": [],
    "stat": ["denominator", "reduce_type"],
    "scope": ["name"],
    "scope_func_wrapper": ["name"],
    "disable_scope": [],
    "record_timing": ["key"],
    "export": ["key", "reduce_group", "reset"],
    "export_all": ["reduce_group", "reset"],
    "get": ["name"],
}
"""The positional arguments of AReaL 1.0.4, in their order."""


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_calls_take_the_same_arguments(name):
    parameters = inspect.signature(getattr(stats_tracker, name)).parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert positional[: len(SIGNATURES[name])] == SIGNATURES[name]
    takes_metrics = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    assert takes_metrics is (name in ("scalar", "denominator", "stat"))


def test_the_names_of_the_module_are_here():
    tracker = stats_tracker.DistributedStatsTracker("critic")
    tracker.scalar(lr=0.5)
    assert tracker.export() == {"critic/lr": 0.5, "critic/lr__count": 1.0}
    assert stats_tracker.get() is stats_tracker.DEFAULT_TRACKER is stats_tracker.TRACKERS[""]
    assert stats_tracker.get("rollout") is stats_tracker.TRACKERS["rollout"]
    assert {kind.name for kind in stats_tracker.ReduceType} >= {"AVG_MIN_MAX", "AVG", "SUM", "MIN", "MAX", "SCALAR"}


def test_every_exported_number_is_a_float():
    tracker = stats_tracker.DistributedStatsTracker()
    tracker.scalar(lr=torch.tensor(0.5), steps=3)
    tracker.denominator(n_tokens=torch.ones(2, dtype=torch.bool))
    tracker.stat("n_tokens", loss=torch.ones(2), entropy=torch.ones(2, dtype=torch.bfloat16))
    tracker.stat("n_tokens", ReduceType.SUM, clipped=torch.ones(2, dtype=torch.int64))
    exports = [tracker.export("loss"), tracker.export("unknown"), tracker.export()]
    assert len(exports[-1]) == 9
    assert {type(value) for export in exports for value in export.values()} == {float}
