"""The policy trains on tokens that it has sampled long ago.

AReaL (Fu et al. 2025, arXiv:2505.24298) bounds the versions between sampling and training by 8 at most, beyond which
its results get worse. The bound is on the mean over tokens, in the median of five exports; twice as much is severe.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import find_excess
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, read_points

LIMIT = 8.0
SEVERE_LIMIT = 16.0
_KEY = "ppo_actor/update/version_stats/sample_staleness_theta_avg"


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    excess = find_excess(read_points(history, _KEY), LIMIT)
    if excess is not None:
        yield Finding(
            rule="staleness",
            severity="severe" if excess.value >= SEVERE_LIMIT else "warning",
            **excess.steps,
            key=_KEY,
            summary=f"tokens are {excess.value:.1f} versions old on average since step {excess.step:,}",
            advice="Bound the staleness of the rollouts, use fewer of them at once, or publish weights more often.",
            evidence={"versions": excess.value},
        )
