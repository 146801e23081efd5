from __future__ import annotations

import pytest
from support.finding_runs import diagnose, noisy

from areal_callbacks.findings.windows import EXPORTS_TO_FIND


def test_a_run_that_has_lost_26_percent_is_found_in_time():
    rates = noisy(1000, 40) + noisy(740, 20, seed=1)
    (finding,) = diagnose(train_perf__tokens_per_second=rates)
    assert finding.rule == "throughput_drop"
    assert finding.severity == "warning"
    assert 400 < finding.step <= finding.found_step <= 400 + 10 * EXPORTS_TO_FIND
    assert finding.last_step == 600
    assert finding.evidence["change"] == pytest.approx(-0.26, abs=0.03)


def test_half_of_the_speed_is_severe():
    (finding,) = diagnose(train_perf__tokens_per_second=noisy(1000, 40) + noisy(450, 20))
    assert finding.severity == "severe"


@pytest.mark.parametrize(
    "rates",
    [
        [300.0, 600.0, 900.0, *noisy(1000, 60)],
        noisy(1000, 60, noise=0.05),
        [*noisy(1000, 30), 200.0, 250.0, *noisy(1000, 30)],
        noisy(1000, 30) + noisy(900, 30),
        noisy(1000, 8) + noisy(500, 4),
    ],
    ids=["warm-up", "noise", "two slow exports", "ten per cent", "too young to tell"],
)
def test_a_healthy_run_is_left_alone(rates):
    assert diagnose(train_perf__tokens_per_second=rates) == []


def test_the_start_after_a_resumption_is_a_warm_up():
    rates = [*noisy(1000, 30), 200.0, 300.0, 500.0, *noisy(1000, 30)]
    assert diagnose(train_perf__tokens_per_second=rates, resumed_at=[310]) == []


def test_longer_sequences_are_no_fault():
    work = {"train_perf__tokens": [1e5] * 30 + [2e5] * 30, "train_perf__optimizer_steps": [10.0] * 60}
    rates = noisy(1000, 30) + noisy(700, 30)
    assert diagnose(train_perf__tokens_per_second=rates, **work) == []
    assert diagnose(train_perf__tokens_per_second=rates) != []


def test_flops_are_compared_where_there_are_any():
    flops = {"train_perf__estimated_flops_per_second": noisy(1e12, 60)}
    assert diagnose(train_perf__tokens_per_second=noisy(1000, 30) + noisy(700, 30), **flops) == []
