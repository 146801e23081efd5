"""Trainer and rollout disagree about the probabilities of the sampled tokens, ever more or far out.

Drift: the mean of |d|, d the difference of log-probabilities, is three times the lowest median of twenty exports, and
at least 0.03. Engines that compute in bfloat16 differ by 0.01 to 0.02; a policy that has moved since the rollout adds
to that, but not threefold. Tails: 2 % of the tokens have a ratio outside of [1/2, 2], the extreme tokens as R3 defines
them (arXiv:2510.11370, equation 3); 10 % is severe, or a mean |d| of 0.2: importance weights say nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import Excess, describe_episode, find_excess
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points, read_first
from areal_callbacks.findings.windows import find_episode, follow_best, smooth

GROWTH = 3.0
LEAST_DIFFERENCE = 0.03
SEVERE_DIFFERENCE = 0.2
TAIL = 0.02
SEVERE_TAIL = 0.1
_PREFIX = "ppo_actor/train_infer/"
_ADVICE = (
    "Synchronise the weights of the rollout engine, match its precision and its routing of experts to the trainer's,"
    " and look at staleness."
)


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding for the drift, and one for the tails."""
    key, points = read_first(history, [f"{_PREFIX}logp_abs_diff/avg", f"{_PREFIX}finite/logp_abs_diff/avg"])
    drift = _find_drift(points)
    if drift is not None:
        excess, past = drift
        said = f"train/infer mismatch has grown from {past:.3g} to {excess.value:.3g} since step {excess.step:,}"
        evidence = {"before": past, "after": excess.value, "factor": excess.value / past}
        yield _describe(key, excess, said, evidence, is_severe=excess.value >= SEVERE_DIFFERENCE)
    key, points = read_first(history, [f"{_PREFIX}ratio_outside_2", f"{_PREFIX}finite/ratio_outside_2"])
    tail = find_excess(points, TAIL)
    if tail is not None:
        said = f"{100 * tail.value:.1f} % of the tokens have a ratio outside of [1/2, 2] since step {tail.step:,}"
        yield _describe(key, tail, said, {"share": tail.value}, is_severe=tail.value >= SEVERE_TAIL)


def _find_drift(points: Points) -> tuple[Excess, float] | None:
    recent, best = smooth(points.values), follow_best(points.values)
    grown = [past is not None and value >= max(LEAST_DIFFERENCE, GROWTH * past) for value, past in zip(recent, best)]
    episode = find_episode(grown)
    excess = describe_episode(points, recent, episode)
    if episode is None or excess is None:
        return None
    return excess, max(best[episode.found] or 0.0, 1e-12)


def _describe(key: str, excess: Excess, said: str, evidence: dict[str, float], *, is_severe: bool) -> Finding:
    return Finding(
        rule="mismatch",
        severity="severe" if is_severe else "warning",
        **excess.steps,
        key=key,
        summary=said,
        advice=_ADVICE,
        evidence=evidence,
    )
