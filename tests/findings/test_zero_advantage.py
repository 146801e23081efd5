from __future__ import annotations

import pytest
from support.finding_runs import diagnose

KEY = "ppo_actor__advantage_zero_fraction"


@pytest.mark.parametrize(("value", "severity"), [(0.9, "warning"), (0.99, "severe")])
def test_a_value_that_stays_beyond_the_limit(value, severity):
    (finding,) = diagnose(**{KEY: [0.01] * 10 + [value] * 20})
    assert (finding.rule, finding.severity, finding.evidence) == ("zero_advantage", severity, {"share": value})
    assert 100 < finding.step <= finding.found_step <= 250
    assert finding.last_step == 300


def test_what_is_usual_is_left_alone():
    assert diagnose(**{KEY: [0.5] * 10 + [0.9] * 8 + [0.7] * 12}) == []
