"""The token metrics of the train/rollout mismatch, recorded from their sums.

kl_k1 = -d, kl_k2 = d²/2 and kl_k3 = exp(d) - 1 - d are the estimators k1, k2, k3 of KL(rollout ‖ trainer) on tokens
that the rollout sampled, d = log p_trainer - log p_rollout: Schulman, "Approximating KL Divergence" (2020), where
log r is d. The means of k1 and k3 are unbiased; that of k2 agrees with the divergence to second order in d.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.quantiles import quantiles
from areal_callbacks.ppo.ratios import token_ratios
from areal_callbacks.ppo.rows import mean_rows, record_means
from areal_callbacks.ppo.tails import ABOVE, OUTSIDE, subtract_above
from areal_callbacks.ppo.token_sums import TokenSums


def record_token_metrics(tracker: StatsTracker, totals: TokenSums) -> None:
    """Record the specified metrics, and the extensions if they were summed; tails are NaN if a token is not finite."""
    sums = totals.sums
    invalid = torch.where(sums["nonfinite"] > 0, torch.nan, 0.0)
    means, tails = _name_specified(sums), _pick(sums, OUTSIDE)
    if totals.magnitudes is not None:
        means |= _pick(sums, ("exact_match_fraction", "positive_logp_fraction"))
        tails |= _pick(sums, ABOVE) | subtract_above(sums)
        ratio_sums = _pick(sums, ("count", "expm1_diff", "expm1_diff_squared"))
        tracker.sums(token_ratios, torch.stack(list(ratio_sums.values())))
        tracker.sums(quantiles, totals.magnitudes + invalid, "logp_abs_diff")
    means |= {name: count + invalid for name, count in tails.items()}
    record_means(tracker, means, sums["count"])
    tracker.summaries(ReduceType.AVG_MIN_MAX, **_make_extrema_rows(totals))


def record_finite_metrics(tracker: StatsTracker, totals: TokenSums) -> None:
    """Record the specified metrics of tokens that are all finite below ``finite/``, and their number."""
    sums = totals.sums
    means = _name_specified(sums) | _pick(sums, OUTSIDE)
    for irregular in ("nonfinite_logp_fraction", "kl_k3_overflow_fraction"):
        del means[irregular]
    with tracker.scope("finite"):
        record_means(tracker, means, sums["count"])
        tracker.summaries(ReduceType.AVG_MIN_MAX, **_make_extrema_rows(totals))
        number = mean_rows({"n_valid_tokens": torch.zeros_like(sums["count"])}, sums["count"])
        tracker.summaries(ReduceType.DENOMINATOR, **number)


def _pick(sums: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    return {name: sums[name] for name in names}


def _name_specified(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Metric → sum over the tokens, float64 ``[]``, of the specified means without the tails."""
    return {
        "logp_diff_squared": sums["logp_diff_squared"],
        "trainer_nll": -sums["trainer_logp"],
        "rollout_nll": -sums["rollout_logp"],
        "kl_k1": -sums["logp_diff"],
        "kl_k2": sums["logp_diff_squared"] / 2,
        "kl_k3": sums["kl_k3"],
        "nonfinite_logp_fraction": sums["nonfinite"],
        "kl_k3_overflow_fraction": sums["overflow"],
    }


def _make_extrema_rows(totals: TokenSums) -> dict[str, Tensor]:
    """Metric → float64 ``[4]``: sum, count, minimum, maximum."""
    sums, minima, maxima, _ = totals
    return {name: torch.stack((sums[name], sums["count"], minima[name], maxima[name])) for name in minima}
