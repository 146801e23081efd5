"""Most tokens have no advantage: their groups are all right, or all wrong, and teach nothing.

Between a third and two thirds are usual with binary rewards, and the share grows as the tasks get easy; DAPO (Yu et al.
2025, arXiv:2503.14476) samples anew for that reason. 80 % at ten exports in a row means that four fifths of the
rollouts are thrown away; 98 % is severe.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import find_excess
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, read_points

SHARE = 0.8
SEVERE_SHARE = 0.98
EXPORTS = 10
_KEY = "ppo_actor/advantage_zero_fraction"


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    excess = find_excess(read_points(history, _KEY), SHARE, EXPORTS)
    if excess is not None:
        yield Finding(
            rule="zero_advantage",
            severity="severe" if excess.value >= SEVERE_SHARE else "warning",
            **excess.steps,
            key=_KEY,
            summary=f"{100 * excess.value:.0f} % of the tokens have no advantage since step {excess.step:,}",
            advice="Choose tasks that are solved sometimes, sample larger groups, or leave out groups without spread.",
            evidence={"share": excess.value},
        )
