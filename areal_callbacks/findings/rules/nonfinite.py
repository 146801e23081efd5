"""NaN or infinity among the numbers of the training itself.

A loss that is NaN once has made the weights NaN, unless the optimizer refused that step; so one is enough. A gradient
norm is infinite now and then in healthy mixed-precision training, where a scaler looks for its scale (Micikevicius et
al. 2018, arXiv:1710.03740, section 3.2, skips such steps), so five exports in a row are needed for everything but
losses and rewards. Minima and maxima of log-probabilities that are infinite by themselves (a token that sampling
excludes) are left to ``nonfinite_logp_fraction``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, ExportedSeries
from areal_callbacks.findings.windows import find_episode

EXPORTS = 5
_FATAL = ("loss", "reward")
_WATCHED = ("grad_norm", "loss", "reward", "advantages", "importance_weight", "approx_kl", "entropy", "kl")


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """One finding for the loss or reward, else one for every other watched key, that is not finite."""
    for key, series in history.series.items():
        name = _find_watched(key)
        if name is not None and not all(map(math.isfinite, series.values)):
            yield from _judge_series(history, key, series, fatal=name in _FATAL)


def _find_watched(key: str) -> str | None:
    """The watched word that the last parts of the key end in."""
    parts = key.removesuffix("/avg").removesuffix("/min").removesuffix("/max").split("/")
    return next((name for name in _WATCHED if parts[-1] == name or parts[-1].endswith(f"_{name}")), None)


def _judge_series(history: ExportedHistory, key: str, series: ExportedSeries, *, fatal: bool) -> Iterator[Finding]:
    episode = find_episode([not math.isfinite(value) for value in series.values], 1 if fatal else EXPORTS)
    if episode is None:
        return
    step, found, last = (history.steps[series.indices[position]] for position in episode)
    yield Finding(
        rule="nonfinite",
        severity="severe",
        step=step,
        found_step=found,
        last_step=last,
        key=key,
        summary=f"{key} is {series.values[episode.first]} since step {step:,}",
        advice="Go back to the last checkpoint before it; lower the learning rate or clip gradients, and look at the"
        " batch of that step.",
        evidence={"value": series.values[episode.first]},
    )
