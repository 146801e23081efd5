from __future__ import annotations

import math

import pytest
from support.finding_runs import diagnose

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "key", ["loss", "train__loss", "train_loss", "rollout__reward", "ppo_actor__update__actor_loss__avg"]
)
def test_one_loss_or_reward_that_is_nan_is_severe(key):
    (finding,) = diagnose(**{key: [2.0, 1.9, NAN, 1.8]})
    assert (finding.rule, finding.severity, finding.step, finding.last_step) == ("nonfinite", "severe", 30, 30)
    assert finding.key == key.replace("__", "/")
    assert finding.docs == "docs/findings.md#nonfinite"
    assert "is nan since step 30" in finding.summary


def test_a_gradient_norm_is_infinite_now_and_then():
    assert diagnose(grad_norm=[1.0, INF, 1.0, INF, INF, INF, INF, 1.0]) == []


def test_a_gradient_norm_that_stays_infinite_is_found_at_the_fifth_export():
    (finding,) = diagnose(grad_norm=[1.0, 1.0, INF, INF, INF, INF, INF, INF])
    assert (finding.step, finding.found_step, finding.last_step) == (30, 70, 80)


def test_infinite_extrema_of_log_probabilities_are_none_of_it():
    assert diagnose(ppo_actor__train_infer__logp_diff__min=[-INF] * 9, train_perf__mfu=[NAN] * 9) == []
