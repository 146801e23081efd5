from __future__ import annotations

import pytest
from support.finding_runs import diagnose


def run(skipped: list[float]):
    return diagnose(train_perf__skipped_steps=skipped, train_perf__optimizer_steps=[10 - count for count in skipped])


@pytest.mark.parametrize(("count", "severity"), [(2.0, "warning"), (8.0, "severe")])
def test_steps_that_are_skipped_again_and_again(count, severity):
    (finding,) = run([0.0] * 10 + [count] * 20)
    assert (finding.rule, finding.severity) == ("skipped_steps", severity)
    assert 100 < finding.step <= finding.found_step <= 180
    assert finding.evidence == {"share": pytest.approx(count / 10)}


def test_a_scaler_that_searches_and_tries_is_left_alone():
    assert run([10.0, 6.0, *([0.0] * 9 + [1.0]) * 4]) == []
