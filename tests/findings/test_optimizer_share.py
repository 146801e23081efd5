from __future__ import annotations

import pytest
from support.finding_runs import diagnose


def run(step: float):
    series = {"seconds": [10.0] * 20, "optimizer_steps": [5.0] * 20}
    return diagnose(timeperf__optimizer_step=[step] * 20, **{f"train_perf__{key}": row for key, row in series.items()})


def test_an_optimizer_that_takes_half_of_the_time():
    (finding,) = run(1.0)
    assert (finding.rule, finding.severity, finding.evidence) == ("optimizer_share", "warning", {"share": 0.5})


@pytest.mark.parametrize("step", [0.05, 0.7])
def test_what_is_usual_is_left_alone(step):
    assert run(step) == []
