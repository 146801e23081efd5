from __future__ import annotations

import pytest
from support.finding_runs import diagnose, noisy

DIFFERENCE = "ppo_actor__train_infer__logp_abs_diff__avg"
TAIL = "ppo_actor__train_infer__ratio_outside_2"


def test_a_mismatch_that_grows_ninefold():
    values = noisy(0.01, 40, 0.1) + [0.01 * 9 ** (step / 20) for step in range(20)] + [0.09] * 20
    (finding,) = diagnose(**{DIFFERENCE: values})
    assert (finding.rule, finding.severity) == ("mismatch", "warning")
    assert 400 < finding.step <= finding.found_step < 600
    assert finding.evidence["factor"] == pytest.approx(9, rel=0.15)


@pytest.mark.parametrize(("share", "severity"), [(0.03, "warning"), (0.2, "severe")])
def test_tails_that_are_heavy(share, severity):
    (finding,) = diagnose(**{TAIL: noisy(0.002, 20) + [share] * 10})
    assert (finding.severity, finding.evidence) == (severity, {"share": share})


def test_means_of_finite_tokens_stand_in():
    (finding,) = diagnose(**{TAIL: [float("nan")] * 9, TAIL.replace("ratio", "finite__ratio"): [0.05] * 9})
    assert finding.key == "ppo_actor/train_infer/finite/ratio_outside_2"


@pytest.mark.parametrize(
    "values", [noisy(0.015, 80, 0.3), noisy(0.01, 40) + noisy(0.02, 40), [1e-6] * 40 + [1e-3] * 40]
)
def test_what_is_usual_is_left_alone(values):
    assert diagnose(**{DIFFERENCE: values, TAIL: [0.003] * 80}) == []
