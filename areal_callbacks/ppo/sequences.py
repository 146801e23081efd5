"""The train/rollout mismatch of whole sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.inputs import chunk_size, mean_rows, record, selected
from areal_callbacks.ppo.ratios import sequence_chi2, squared_ratio_sums


def log_sequence_stats(
    tracker: StatsTracker, trainer: Tensor, rollout: Tensor, valid: Tensor, thresholds: Sequence[float]
) -> None:
    """Record sums and means of d per row of the last dimension; rows without a valid token are no sequences."""
    if valid.dim() < 2 or not valid.numel():
        return
    width = valid.shape[-1]
    rows = max(1, chunk_size(valid) // width)
    pieces = zip(*(torch.split(tensor.reshape(-1, width), rows) for tensor in (trainer, rollout, valid)))
    totals, counts, largest = (torch.cat(part) for part in zip(*(_per_row(*piece) for piece in pieces)))
    present = counts > 0
    spoiled = torch.where((present & ~torch.isfinite(largest)).any(), torch.nan, 0.0)
    outside = {
        f"sequence_ratio_outside_{threshold}": (largest > math.log(threshold)).sum() + spoiled
        for threshold in thresholds
    }
    record(tracker, ReduceType.AVG, mean_rows(outside, present.sum().double()))
    tracker.stat_compact(present, sequence_logp_diff_sum=totals, sequence_logp_diff_mean=totals / counts)
    tracker.sums(sequence_chi2, squared_ratio_sums(totals, present))


def _per_row(trainer: Tensor, rollout: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σd, number of tokens and largest |d| of every row."""
    difference = selected(trainer, valid) - selected(rollout, valid)
    return difference.sum(-1), valid.sum(-1).double(), difference.abs().amax(-1)
