from __future__ import annotations

import pytest
from support.finding_runs import diagnose, noisy

PROMPT, SEQUENCE = "ppo_actor__prompt_len__avg", "ppo_actor__seq_len__avg"


def test_answers_that_collapse_behind_long_prompts():
    answers = noisy(800, 30) + noisy(150, 15)
    (finding,) = diagnose(**{PROMPT: [2000.0] * 45, SEQUENCE: [2000.0 + length for length in answers]})
    assert (finding.rule, finding.severity) == ("length_collapse", "severe")
    assert 300 < finding.step <= finding.found_step <= 380
    assert (finding.evidence["before"], finding.evidence["after"]) == pytest.approx((800, 150), rel=0.05)


def test_the_trainers_own_lengths_count_first():
    (finding,) = diagnose(completions__mean_length=noisy(300, 30) + [20.0] * 10, **{SEQUENCE: [500.0] * 40})
    assert finding.key == "completions/mean_length"


@pytest.mark.parametrize("lengths", [noisy(800, 60, 0.2), [800 * 0.99**step for step in range(90)], [20.0] * 60])
def test_answers_that_get_shorter_slowly_are_left_alone(lengths):
    assert diagnose(completions__mean_length=lengths) == []
