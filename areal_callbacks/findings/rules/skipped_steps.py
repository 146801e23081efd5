"""The optimizer refuses many of its steps.

A gradient scaler skips the first dozen while it looks for its scale, and later one in some thousand, after it has tried
a larger one (PyTorch's ``GradScaler``: every 2,000 steps). A tenth of the steps of the last ten exports, at least three
of them, after the first thirty steps, is another thing; half is severe: hardly anything is learnt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from areal_callbacks.findings.bounds import describe_episode
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points, read_points
from areal_callbacks.findings.windows import find_episode

SHARE = 0.1
SEVERE_SHARE = 0.5
LEAST_SKIPPED = 3
SEARCH = 30
"""Steps in which a scaler looks for its scale."""
EXPORTS = 10
_KEY = "train_perf/skipped_steps"


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    points, shares = _follow_shares(history)
    excess = describe_episode(points, shares, find_episode([share >= SHARE for share in shares]))
    if excess is not None:
        yield Finding(
            rule="skipped_steps",
            severity="severe" if excess.value >= SEVERE_SHARE else "warning",
            **excess.steps,
            key=_KEY,
            summary=f"{100 * excess.value:.0f} % of the optimizer's steps are skipped since step {excess.step:,}",
            advice="Gradients overflow: train in bfloat16, lower the learning rate, look for a loss that is too large.",
            evidence={"share": excess.value},
        )


def _follow_shares(history: ExportedHistory) -> tuple[Points, list[float]]:
    """The skipped steps after the search, and their share of all steps of ten exports."""
    skipped, taken = read_points(history, _KEY), dict(zip(*read_points(history, "train_perf/optimizer_steps")))
    tried = [taken.get(step, 0.0) + count for step, count in zip(*skipped)]
    later = [position for position, count in enumerate(itertools.accumulate(tried)) if count > SEARCH]
    points = Points([skipped.steps[at] for at in later], [skipped.values[at] for at in later])
    windows = [later[max(0, end - EXPORTS) : end] for end in range(1, len(later) + 1)]
    return points, [
        _share(*(sum(values[at] for at in window) for values in (skipped.values, tried))) for window in windows
    ]


def _share(skipped: float, tried: float) -> float:
    return skipped / tried if skipped >= LEAST_SKIPPED and tried else 0.0
