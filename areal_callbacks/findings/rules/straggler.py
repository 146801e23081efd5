"""One rank is slower than the others, which wait for it.

``1 - seconds_mean / seconds`` is the share of the machine that waits. At 15 % in the median of five exports, with the
same rank as the slowest at nine of ten, it is that rank and not the spread of the batches, whose slowest rank changes.
Runs that do not tell the slowest rank need 25 %.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import describe_episode, leave_out_warm_up
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points, divide, read_points
from areal_callbacks.findings.windows import find_episode, smooth

SHARE = 0.15
SHARE_WITHOUT_RANK = 0.25
SEVERE_SHARE = 0.4
EXPORTS = 10
_SECONDS, _MEAN, _RANK = (f"train_perf/{name}" for name in ("seconds", "seconds_mean", "slowest_rank"))


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    points = leave_out_warm_up(history, divide(history, _MEAN, _SECONDS))
    waits = Points(points.steps, [1 - value for value in points.values])
    recent = smooth(waits.values)
    ranks = dict(zip(*read_points(history, _RANK)))
    constant = _find_constant(waits.steps, ranks)
    bound = SHARE if ranks else SHARE_WITHOUT_RANK
    slow = [value >= bound and (not ranks or same) for value, same in zip(recent, constant)]
    excess = describe_episode(waits, recent, find_episode(slow))
    if excess is None:
        return
    rank = ranks.get(excess.last_step)
    who = "the slowest rank" if rank is None else f"rank {rank:.0f}"
    yield Finding(
        rule="straggler",
        severity="severe" if excess.value >= SEVERE_SHARE else "warning",
        **excess.steps,
        key=_SECONDS if rank is None else _RANK,
        summary=f"the others wait {100 * excess.value:.0f} % of the time for {who} since step {excess.step:,}",
        advice="Look at that rank's node: clocks, thermal throttling, other jobs, a slow link; or at how batches are"
        " divided over the ranks.",
        evidence={"waiting": excess.value} | ({} if rank is None else {"rank": rank}),
    )


def _find_constant(steps: list[int], ranks: dict[int, float]) -> list[bool]:
    """For each step whether its slowest rank was so at nine of the last ten."""
    told = [ranks.get(step) for step in steps]
    windows = (told[max(0, end - EXPORTS) : end] for end in range(1, len(told) + 1))
    return [len(window) == EXPORTS and window.count(window[-1]) >= EXPORTS - 1 for window in windows]
