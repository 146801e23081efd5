from __future__ import annotations

import pytest
from support.finding_runs import diagnose

KEY = "ppo_actor__update__clip_ratio__avg"


@pytest.mark.parametrize(("value", "severity"), [(0.4, "warning"), (0.7, "severe")])
def test_a_value_that_stays_beyond_the_limit(value, severity):
    (finding,) = diagnose(**{KEY: [0.01] * 10 + [value] * 20})
    assert (finding.rule, finding.severity, finding.evidence) == ("clip_ratio", severity, {"share": value})
    assert 100 < finding.step <= finding.found_step <= 180
    assert finding.last_step == 300


def test_what_is_usual_is_left_alone():
    assert diagnose(**{KEY: [0.15] * 14 + [0.6] * 2 + [0.15] * 14}) == []
