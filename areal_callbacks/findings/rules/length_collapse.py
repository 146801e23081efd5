"""Answers have become short.

The mean length of the answers is below 40 % of the median of the run's own past, and three times as far below it as
that varies: a policy that has learnt to be brief loses a third or half over hundreds of steps, one that has collapsed
(an end-of-text token at once, one sentence for everything) most of it within a few.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points, read_first, read_points
from areal_callbacks.findings.windows import Past, compare_with_past, find_episode, smooth

LEFT = 0.4
SPREADS = 3.0
_SEQUENCE, _PROMPT = "ppo_actor/seq_len/avg", "ppo_actor/prompt_len/avg"
_ANSWERS = ("completions/mean_length", "train/completions/mean_length", _SEQUENCE)


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    key, points = _read_lengths(history)
    recent = smooth(points.values)
    judged = compare_with_past(points.values, lambda at, past: _is_short(recent[at], past))
    episode = find_episode([one.is_off for one in judged])
    if episode is None:
        return
    past = judged[episode.found].past
    before, after = past.median if past else 0.0, recent[episode.last]
    step, found, last = (points.steps[position] for position in episode)
    yield Finding(
        rule="length_collapse",
        severity="severe",
        step=step,
        found_step=found,
        last_step=last,
        key=key,
        summary=f"answers have shrunk from {before:.0f} to {after:.0f} tokens since step {step:,}",
        advice="Read some of them; look for a reward that favours short answers, a wrong end-of-text token, a KL term"
        " that is too weak.",
        evidence={"before": before, "after": after},
    )


def _read_lengths(history: ExportedHistory) -> tuple[str, Points]:
    """The mean length of the answers, without their prompts where those are known."""
    key, points = read_first(history, _ANSWERS)
    if key != _SEQUENCE:
        return key, points
    prompts = dict(zip(*read_points(history, _PROMPT)))
    return key, Points(points.steps, [value - prompts.get(step, 0.0) for step, value in zip(*points)])


def _is_short(value: float, past: Past) -> bool:
    return value < LEFT * past.median and value < past.median - SPREADS * past.spread
