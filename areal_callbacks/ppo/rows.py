"""Summary rows below ``ppo_actor/``, from sums and counts that are computed here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.tensors import count_true


@contextlib.contextmanager
def enter_scope(tracker: StatsTracker | None, scope: str = "") -> Iterator[StatsTracker]:
    """The tracker, or the default one for None, that names keys ``ppo_actor/<scope>/…`` whatever its scope was."""
    tracker = stats_tracker.get() if tracker is None else tracker
    with tracker.disable_scope(), tracker.scope(f"ppo_actor/{scope}"):
        yield tracker


def record_counts(tracker: StatsTracker, **masks: Tensor) -> None:
    """Record the number of true elements of each mask; unlike ``denominator()`` without keeping the masks."""
    rows: dict[str, Tensor] = {}
    for name, mask in masks.items():
        count = count_true(mask)
        rows |= mean_rows({name: torch.zeros_like(count)}, count)
    tracker.summaries(ReduceType.DENOMINATOR, **rows)


def record_means(tracker: StatsTracker, sums: dict[str, Tensor], count: Tensor) -> None:
    """Record metrics that export a mean: their sums over one number of elements, all float64 ``[]``."""
    tracker.summaries(ReduceType.AVG, **mean_rows(sums, count))


def mean_rows(sums: dict[str, Tensor], count: Tensor) -> dict[str, Tensor]:
    """Float64 rows ``[4]`` of (sum, count, ∞, -∞) from sums and a count, all float64 ``[]``."""
    infinity = torch.full_like(count, torch.inf)
    return {name: torch.stack((total, count, infinity, -infinity)) for name, total in sums.items()}
