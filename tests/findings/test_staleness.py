from __future__ import annotations

import pytest
from support.finding_runs import diagnose

KEY = "ppo_actor__update__version_stats__sample_staleness_theta_avg"


@pytest.mark.parametrize(("value", "severity"), [(9.0, "warning"), (20.0, "severe")])
def test_a_value_that_stays_beyond_the_limit(value, severity):
    (finding,) = diagnose(**{KEY: [1.0] * 10 + [value] * 20})
    assert (finding.rule, finding.severity, finding.evidence) == ("staleness", severity, {"versions": value})
    assert 100 < finding.step <= finding.found_step <= 180
    assert finding.last_step == 300


def test_what_is_usual_is_left_alone():
    assert diagnose(**{KEY: [7.0] * 30}) == []
