"""A slice of ``benchmarks/bench_findings.py``: healthy runs are left alone, sick ones are found in time."""

from __future__ import annotations

import pytest
from support.sick_runs import NEEDS_EXPERTS, NEEDS_POLICY, SICKNESSES
from support.simulated_runs import EVERY, Simulation

from areal_callbacks.findings import RULES, find

HEALTHY = 120


def test_every_rule_has_its_sickness():
    assert list(SICKNESSES) == list(RULES)


def test_healthy_runs_are_left_alone():
    kinds = [(moe, policy) for moe in (False, True) for policy in (False, True)]
    runs = (Simulation(seed, moe=moe, policy=policy) for seed, (moe, policy) in enumerate(kinds * (HEALTHY // 4)))
    found = [(finding.rule, finding.summary) for run in runs for finding in find(run.history())]
    assert len(found) <= HEALTHY // 100, found


@pytest.mark.parametrize("rule", SICKNESSES)
@pytest.mark.parametrize("seed", range(3))
def test_sick_runs_are_found_in_time(rule, seed):
    sicken, exports = SICKNESSES[rule]
    run = Simulation(20_000 + seed, moe=rule in NEEDS_EXPERTS, policy=rule in NEEDS_POLICY)
    onset = 60 + 20 * seed
    sicken(run, onset)
    steps = [finding.found_step for finding in find(run.history()) if finding.rule == rule]
    assert onset < min(steps) / EVERY <= onset + exports
