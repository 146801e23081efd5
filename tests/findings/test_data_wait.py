from __future__ import annotations

import pytest
from support.finding_runs import diagnose


def run(wait: list[float], **more):
    return diagnose(train_perf__seconds=[10.0] * len(wait), train_perf__data_wait_seconds=wait, **more)


@pytest.mark.parametrize(("wait", "severity"), [(4.0, "warning"), (12.0, "severe")])
def test_a_device_that_waits(wait, severity):
    (finding,) = run([0.1] * 10 + [wait] * 20)
    assert (finding.rule, finding.severity) == ("data_wait", severity)
    assert 100 < finding.step <= finding.found_step <= 180
    assert finding.evidence == {"share": pytest.approx(wait / (wait + 10))}


def test_a_little_waiting_and_a_slow_start_are_left_alone():
    assert run([90.0, 90.0, 50.0] + [1.5] * 27) == []


def test_a_loop_with_rollouts_waits_for_them():
    assert run([30.0] * 30, timeperf__rollout=[30.0] * 30) == []
