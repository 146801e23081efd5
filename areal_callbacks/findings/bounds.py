"""Series whose smoothed values lie beyond a bound for a while."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from areal_callbacks.findings.history import ExportedHistory, Points
from areal_callbacks.findings.windows import LAST, Episode, find_episode, skip_warm_up, smooth


class FindingSteps(TypedDict):
    """The fields of a finding that say when."""

    step: int
    found_step: int
    last_step: int


class Excess(NamedTuple):
    """When a smoothed value reached a bound, and the furthest that it came.

    Attributes:
        step: the first step.
        found_step: the step at which it had lasted.
        last_step: the last step.
        value: the largest smoothed one since ``step``.
    """

    step: int
    found_step: int
    last_step: int
    value: float

    @property
    def steps(self) -> FindingSteps:
        """For the finding that says so."""
        return {"step": self.step, "found_step": self.found_step, "last_step": self.last_step}


def find_excess(points: Points, bound: float, exports: int = LAST) -> Excess | None:
    """The time in which the median of five exports was at least ``bound``, at ``exports`` in a row."""
    recent = smooth(points.values)
    return describe_episode(points, recent, find_episode([value >= bound for value in recent], exports))


def describe_episode(points: Points, recent: list[float], episode: Episode | None) -> Excess | None:
    """The steps of an episode, and the largest of ``recent`` in it."""
    if episode is None:
        return None
    step, found_step, last_step = (points.steps[position] for position in episode)
    return Excess(step, found_step, last_step, max(recent[episode.first : episode.last + 1]))


def leave_out_warm_up(history: ExportedHistory, points: Points) -> Points:
    """The points without the first three of every start."""
    skipped = skip_warm_up(points.steps, history.resumed_at)
    kept = [(step, value) for step, value, skip in zip(*points, skipped) if not skip]
    return Points([step for step, _ in kept], [value for _, value in kept])
