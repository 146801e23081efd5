"""The device waits for its data.

``data_wait_seconds / (data_wait_seconds + seconds)`` in the median of five exports: a fifth is a machine of five nodes
that uses four. Half is severe. A loop of reinforcement learning waits for its rollouts between two updates, which is
how it is built: runs that time a rollout or record a policy are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import find_excess, leave_out_warm_up
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points, divide

SHARE = 0.2
SEVERE_SHARE = 0.5
_KEY = "train_perf/data_wait_seconds"
_ROLLOUTS = ("rollout/", "timeperf/rollout", "ppo_actor/")


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    if any(key.startswith(_ROLLOUTS) for key in history.series):
        return
    ratios = leave_out_warm_up(history, divide(history, _KEY, "train_perf/seconds"))
    excess = find_excess(Points(ratios.steps, [ratio / (1 + ratio) for ratio in ratios.values]), SHARE)
    if excess is not None:
        yield Finding(
            rule="data_wait",
            severity="severe" if excess.value >= SEVERE_SHARE else "warning",
            **excess.steps,
            key=_KEY,
            summary=f"{100 * excess.value:.0f} % of the time is waiting for data since step {excess.step:,}",
            advice="Use more loader workers, prefetch further, keep tokenised data on a local disk, and look for work"
            " between the steps of the loop.",
            evidence={"share": excess.value},
        )
