"""The train/rollout mismatch of some of the tokens: by staleness, by the sign of the advantage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.inputs import binned, chunks, mean_rows, record, selected

AGES = ("0", "1", "2", "3_plus")
SIGNS = ("negative", "zero", "positive")


def log_by_age(
    tracker: StatsTracker, trainer: Tensor, rollout: Tensor, valid: Tensor, versions: Tensor, current_version: int
) -> None:
    """``by_age/<age>/…`` with age = current version - version, where both are known and the age is not negative."""

    def groups() -> Iterator[tuple[Tensor, ...]]:
        for mask, version, *logp in chunks(valid, versions.to(valid.device, non_blocking=True), trainer, rollout):
            age = current_version - version.long()
            yield mask & (version >= 0) & (age >= 0), age.clamp(0, len(AGES) - 1), *logp

    _record(tracker, "by_age", AGES, groups())


def log_by_advantage(
    tracker: StatsTracker, trainer: Tensor, rollout: Tensor, valid: Tensor, advantages: Tensor
) -> None:
    """``by_advantage/<sign>/…``; a NaN advantage has no sign."""

    def groups() -> Iterator[tuple[Tensor, ...]]:
        for mask, advantage, *logp in chunks(valid, advantages.to(valid.device, non_blocking=True), trainer, rollout):
            yield mask & ~torch.isnan(advantage), (1 + torch.sign(advantage).nan_to_num(0.0)).long(), *logp

    _record(tracker, "by_advantage", SIGNS, groups())


def _record(tracker: StatsTracker, scope: str, names: Sequence[str], pieces: Iterator[tuple[Tensor, ...]]) -> None:
    total = sum(_sums(len(names), *piece) for piece in pieces)
    assert isinstance(total, Tensor)
    rows: dict[str, Tensor] = {}
    for name, (count, size, k3) in zip(names, total.T.unbind()):
        means = {f"{scope}/{name}/logp_abs_diff": size, f"{scope}/{name}/kl_k3": k3}
        rows |= mean_rows(means, count)
    record(tracker, ReduceType.AVG, rows)


def _sums(groups: int, mask: Tensor, group: Tensor, trainer: Tensor, rollout: Tensor) -> Tensor:
    """``[3, groups]``: count, Σ|d|, Σk3; the tokens of no group go into one more column that is dropped."""
    difference = selected(trainer, mask) - selected(rollout, mask)
    place = torch.where(mask, group, groups)
    weights = (None, difference.abs(), torch.expm1(difference) - difference)
    return torch.stack([binned(place, groups + 1, weight)[:groups] for weight in weights])
