"""Many tokens of an update are clipped, so that they teach nothing.

PPO and GRPO clip some per cent; GSPO, which clips whole sequences, about 15 % (Zheng et al. 2025, arXiv:2507.18071, two
orders of magnitude more than GRPO). 30 % in the median of five exports is beyond both: the policy moves too far within
one batch. 60 % is severe.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import find_excess
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, read_points

SHARE = 0.3
SEVERE_SHARE = 0.6
_KEY = "ppo_actor/update/clip_ratio/avg"


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    excess = find_excess(read_points(history, _KEY), SHARE)
    if excess is not None:
        yield Finding(
            rule="clip_ratio",
            severity="severe" if excess.value >= SEVERE_SHARE else "warning",
            **excess.steps,
            key=_KEY,
            summary=f"{100 * excess.value:.0f} % of the tokens are clipped since step {excess.step:,}",
            advice="Lower the learning rate, make fewer updates per batch, or widen the clipping range.",
            evidence={"share": excess.value},
        )
