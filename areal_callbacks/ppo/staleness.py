"""How old the policy was that sampled the tokens of an update."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.inputs import boolean, check_shapes, chosen, measurable, record_counts

_AGES = ("sample_staleness_theta", "sample_staleness_proximal")


def log_version_stats(
    versions: Tensor,
    mask: Tensor,
    current_version: int,
    tracker: StatsTracker | None = None,
    *,
    mask_at_predictions: bool = False,
) -> None:
    """Record ``ppo_actor/update/version_stats/``; once per update, over the batch before any filtering.

    ==============================================  ================================================  =========
    Key                                             Meaning                                           Reduction
    ==============================================  ================================================  =========
    sample_staleness_{theta,proximal}_{avg,min,max} current version - version that sampled the token  tokens
    stale_token_fraction, future_token_fraction     fractions sampled by older and newer versions     tokens
    n_valid_generated_tokens                        number of tokens                                  sum
    ==============================================  ================================================  =========

    Counted are masked tokens with a nonnegative version. Actor and rollout versions advance together after an update,
    so that both ages are those against the last published version. Without any token averages and extrema are absent.

    Args:
        versions: integer version per token, negative where none generated it; sequences along the last dimension.
        mask: generated tokens (boolean or 0/1), same shape.
        current_version: the last published version.
        tracker: None for the default tracker.
        mask_at_predictions: the mask was moved to the positions that predict the tokens, one to the left, while the
            versions still are at the tokens. They are moved here, in a copy.

    Raises:
        ValueError: the shapes differ.
    """
    check_shapes(mask, versions=versions)
    versions = at_predictions(versions) if mask_at_predictions else versions
    versions = measurable(versions).long()
    valid = boolean(mask).to(versions.device, non_blocking=True) & (versions >= 0)
    age = current_version - versions
    tracker = chosen(tracker)
    with (
        tracker.disable_scope(),
        tracker.scope("ppo_actor"),
        tracker.scope("update"),
        tracker.scope("version_stats"),
    ):
        record_counts(tracker, n_valid_generated_tokens=valid)
        fractions = {"stale_token_fraction": age > 0, "future_token_fraction": age < 0}
        tracker.stat_compact(valid, ReduceType.AVG, **fractions, **{f"{name}_avg": age for name in _AGES})
        tracker.stat_compact(valid, ReduceType.MIN, **{f"{name}_min": age for name in _AGES})
        tracker.stat_compact(valid, ReduceType.MAX, **{f"{name}_max": age for name in _AGES})


def at_predictions(versions: Tensor) -> Tensor:
    """A copy moved one position to the left; the last position predicts nothing and gets -1."""
    shifted = torch.roll(versions.detach(), -1, -1)
    shifted[..., -1:] = -1
    return shifted
