"""A run that goes on: bounded memory, the same findings as afterwards."""

from __future__ import annotations

import itertools

from support.sick_runs import collapse_an_expert, slow_down, starve_experts
from support.simulated_runs import Simulation

from areal_callbacks.findings import find
from areal_callbacks.findings.recent import RecentHistory
from areal_callbacks.report.history import History


def feed(history: History, recent: RecentHistory) -> RecentHistory:
    counts = {loads.step: loads.counts for loads in history.snapshots}
    for place, step in enumerate(history.steps):
        points = ((key, dict(zip(series.indices, series.values))) for key, series in history.series.items())
        values = {key: values[place] for key, values in points if place in values}
        recent.add(step, values, counts.get(step, {}))
    return recent


def test_the_findings_are_those_of_the_whole_history():
    run = Simulation(5, moe=True, policy=False, exports=120)
    for sicken in (slow_down, starve_experts, collapse_an_expert):
        sicken(run, 70)
    run.resumed = None
    history = run.history()
    expected = {(finding.rule, finding.key, finding.step) for finding in find(history)}
    found = {(finding.rule, finding.key, finding.step) for finding in find(feed(history, RecentHistory()))}
    starved = {one for one in expected if one[0] == "starved_experts"}  # only the last five loads are kept
    assert {rule for rule, _, _ in found} == {"throughput_drop", "starved_experts", "expert_collapse"}
    assert found - {one for one in found if one[0] == "starved_experts"} == expected - starved


def test_memory_is_bounded_and_the_later_half_is_whole():
    recent = RecentHistory(most_exports=100)
    for step in range(10_000):
        recent.add(step, {"a": float(step), **({"b": 1.0} if step == 7_777 else {})}, {("", 0): [step]})
        assert len(recent.steps) <= 101
    assert recent.steps[-50:] == list(range(9_950, 10_000))
    assert recent.steps[0] == 0
    assert max(later - earlier for earlier, later in itertools.pairwise(recent.steps)) <= 10_000 / 10
    assert recent.steps == sorted(recent.steps)
    assert [recent.steps[place] for place in recent.series["a"].indices] == list(recent.series["a"].values)
    assert [loads.step for loads in recent.snapshots] == list(range(9_995, 10_000))


def test_an_earlier_step_begins_anew():
    recent = RecentHistory()
    for step in (10, 20, 30, 20):
        recent.add(step, {"a": float(step), "late": 1.0} if step == 30 else {"a": float(step)}, {("", 0): [1]})
    assert recent.steps == [10, 20]
    assert list(recent.series["a"].values) == [10.0, 20.0]
    assert "late" not in recent.series
    assert [loads.step for loads in recent.snapshots] == [10, 20]
