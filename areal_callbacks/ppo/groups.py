"""The train/rollout mismatch of groups of tokens: by staleness, by the sign of the advantage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.chunks import split_flat, sum_by_bin
from areal_callbacks.ppo.logp import SampledLogp
from areal_callbacks.ppo.rows import mean_rows
from areal_callbacks.ppo.tensors import move, select, to_float64_device

AGES = ("0", "1", "2", "3_plus")
SIGNS = ("negative", "zero", "positive")

Classify: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A property ``[N]`` of tokens → bool ``[N]``, which of them are in a group, and int64 ``[N]``, the group's index."""


def log_by_age(tracker: StatsTracker, logp: SampledLogp, versions: Tensor | None, current_version: int | None) -> None:
    """``by_age/<age>/…`` with age = current version - version, where both are known and the age is not negative."""
    if versions is None or current_version is None:
        return

    def classify(versions: Tensor) -> tuple[Tensor, Tensor]:
        age = current_version - versions.long()
        return (versions >= 0) & (age >= 0), age.clamp(0, len(AGES) - 1)

    _record(tracker, "by_age", AGES, _sum_groups(len(AGES), logp, versions, classify))


def log_by_advantage(tracker: StatsTracker, logp: SampledLogp, advantages: Tensor | None) -> None:
    """``by_advantage/<sign>/…``; a NaN advantage has no sign."""
    if advantages is not None:
        _record(tracker, "by_advantage", SIGNS, _sum_groups(len(SIGNS), logp, advantages, _classify_sign))


def _classify_sign(advantages: Tensor) -> tuple[Tensor, Tensor]:
    return ~torch.isnan(advantages), (1 + torch.sign(advantages).nan_to_num(0.0)).long()


def _sum_groups(groups: int, logp: SampledLogp, values: Tensor, classify: Classify) -> Tensor:
    """Float64 ``[3, groups]``: number of tokens, Σ|d|, Σk3 per group of the values' classes."""
    sums = torch.zeros(3, groups, dtype=torch.float64, device=logp.mask.device)
    values = move(to_float64_device(values), logp.mask.device)
    for *chunk, chunk_values in split_flat(*logp, values):
        sums += _sum_chunk(groups, SampledLogp(*chunk), *classify(chunk_values))
    return sums


def _sum_chunk(groups: int, logp: SampledLogp, known: Tensor, group: Tensor) -> Tensor:
    """:func:`_sum_groups` of a flat chunk with its classes."""
    mask = logp.mask & known
    diff = select(logp.trainer_logp, mask) - select(logp.rollout_logp, mask)
    index = torch.where(mask, group, groups)  # one more bin, which is dropped
    weights = (None, diff.abs(), torch.expm1(diff) - diff)
    return torch.stack([sum_by_bin(index, groups + 1, weight)[:groups] for weight in weights])


def _record(tracker: StatsTracker, scope: str, names: Sequence[str], sums: Tensor) -> None:
    """``sums`` is that of :func:`_sum_groups`; a group without tokens exports nothing."""
    rows: dict[str, Tensor] = {}
    for name, (count, abs_diff, k3) in zip(names, sums.T.unbind()):
        rows |= mean_rows({f"{scope}/{name}/logp_abs_diff": abs_diff, f"{scope}/{name}/kl_k3": k3}, count)
    tracker.summaries(ReduceType.AVG, **rows)
