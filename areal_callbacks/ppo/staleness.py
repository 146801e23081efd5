"""How many versions lie between the policy that sampled a token and the last published one."""

from __future__ import annotations

from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.positions import align_versions
from areal_callbacks.ppo.rows import enter_scope, record_counts
from areal_callbacks.ppo.tensors import check_per_token, move, to_bool, to_float64_device

_AGE_KEYS = ("sample_staleness_theta", "sample_staleness_proximal")


def log_version_stats(
    versions: Tensor,
    mask: Tensor,
    current_version: int,
    tracker: StatsTracker | None = None,
    *,
    mask_at_predictions: bool | None = None,
) -> None:
    """Record ``ppo_actor/update/version_stats/``; once per update, over the batch before any filtering.

    ==============================================  ================================================  =========
    Key                                             Meaning                                           Reduction
    ==============================================  ================================================  =========
    sample_staleness_{theta,proximal}_{avg,min,max} current version - version that sampled the token  tokens
    stale_token_fraction, future_token_fraction     fractions sampled by older and newer versions     tokens
    n_valid_generated_tokens                        number of tokens                                  sum
    ==============================================  ================================================  =========

    Masked tokens with a nonnegative version count. Actor and rollout versions advance together after an update, so
    both ages are differences from the last published version. Without any token averages and extrema are absent.

    Args:
        versions: integer version per token, negative where none generated it; sequences along the last dimension.
        mask: generated tokens (boolean or 0/1), same shape.
        current_version: the last published version.
        tracker: None for the default tracker.
        mask_at_predictions: the mask was moved to the positions that predict the tokens, one to the left, while the
            versions are still at the tokens, as in AReaL. They are moved here, in a copy. None: as the versions tell,
            see :func:`~areal_callbacks.ppo.positions.is_at_predictions`.

    Raises:
        ValueError: the shapes differ.
    """
    check_per_token(mask, versions=versions)
    versions = align_versions(to_float64_device(versions), mask, mask_at_predictions).long()
    valid = move(to_bool(mask), versions.device) & (versions >= 0)
    with enter_scope(tracker, "update/version_stats") as tracker:
        record_counts(tracker, n_valid_generated_tokens=valid)
        _record_ages(tracker, valid, current_version - versions)


def _record_ages(tracker: StatsTracker, valid: Tensor, age: Tensor) -> None:
    """``valid`` is bool, ``age`` int64 of the same shape."""
    fractions = {"stale_token_fraction": age > 0, "future_token_fraction": age < 0}
    tracker.stat_compact(valid, ReduceType.AVG, **fractions, **{f"{key}_avg": age for key in _AGE_KEYS})
    tracker.stat_compact(valid, ReduceType.MIN, **{f"{key}_min": age for key in _AGE_KEYS})
    tracker.stat_compact(valid, ReduceType.MAX, **{f"{key}_max": age for key in _AGE_KEYS})
