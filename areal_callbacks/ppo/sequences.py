"""The train/rollout mismatch of whole sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.chunks import chunk_size
from areal_callbacks.ppo.logp import SampledLogp
from areal_callbacks.ppo.ratios import sequence_chi2, sum_squared_ratios
from areal_callbacks.ppo.rows import record_means
from areal_callbacks.ppo.tails import LOG_THRESHOLDS
from areal_callbacks.ppo.tensors import count_true, select


class _SequenceSums(NamedTuple):
    """Float64 ``[sequences]``: Σd, number of valid tokens and largest |d| of each."""

    diff_sum: Tensor
    tokens: Tensor
    max_abs_diff: Tensor


def log_sequence_stats(tracker: StatsTracker, logp: SampledLogp) -> None:
    """Record sums and means of d per row of the last dimension; rows without a valid token are no sequences."""
    if logp.mask.dim() < 2 or not logp.mask.numel():
        return
    sums = _sum_sequences(logp)
    present = sums.tokens > 0
    _record_tails(tracker, sums.max_abs_diff, present)
    means = sums.diff_sum / sums.tokens
    tracker.stat_compact(present, sequence_logp_diff_sum=sums.diff_sum, sequence_logp_diff_mean=means)
    tracker.sums(sequence_chi2, sum_squared_ratios(sums.diff_sum, present))


def _sum_sequences(logp: SampledLogp) -> _SequenceSums:
    width = logp.mask.shape[-1]
    rows = max(1, chunk_size(logp.mask) // width)
    chunks = zip(*(torch.split(tensor.reshape(-1, width), rows) for tensor in logp))
    parts = [_sum_rows(SampledLogp(*chunk)) for chunk in chunks]
    return _SequenceSums(*(torch.cat(columns) for columns in zip(*parts)))


def _sum_rows(logp: SampledLogp) -> _SequenceSums:
    diff = select(logp.trainer_logp, logp.mask) - select(logp.rollout_logp, logp.mask)
    return _SequenceSums(diff.sum(-1), logp.mask.sum(-1).double(), diff.abs().amax(-1))


def _record_tails(tracker: StatsTracker, max_abs_diff: Tensor, present: Tensor) -> None:
    """Fractions of sequences with a token outside each threshold; NaN if a token is not finite.

    ``max_abs_diff`` is float64 ``[sequences]``, ``present`` bool ``[sequences]``.
    """
    invalid = torch.where(torch.isfinite(max_abs_diff).all(), 0.0, torch.nan)
    outside = {
        f"sequence_ratio_outside_{t}": count_true(max_abs_diff > log_t) + invalid for t, log_t in LOG_THRESHOLDS.items()
    }
    record_means(tracker, outside, count_true(present))
