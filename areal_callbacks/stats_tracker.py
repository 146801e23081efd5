"""The default and the named trackers as module functions (AReaL: ``areal.utils.stats_tracker``).

    from areal_callbacks import stats_tracker

    stats_tracker.denominator(n_valid_tokens=mask)
    stats_tracker.stat(loss=loss, denominator="n_valid_tokens")      # loss/avg, loss/min, loss/max
    stats_tracker.get("rollout").scalar(reward=0.5)                  # rollout/reward
    stats_tracker.export_all(reduce_group=group)

Inside a run that a callback of this package observes no export is needed: whatever is recorded here arrives in that
run's logger.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from areal_callbacks.core.grouped import pool_grouped
from areal_callbacks.core.grouped_export import export_grouped
from areal_callbacks.core.groups import export_groups
from areal_callbacks.core.merge import merge_worker_stats
from areal_callbacks.core.records import Records
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import COUNT_SUFFIX, ReduceType

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "DEFAULT_TRACKER",
    "TRACKERS",
    "DistributedStatsTracker",
    "ReduceType",
    "StatsTracker",
    "absorb",
    "collect_all",
    "denominator",
    "disable_scope",
    "export",
    "export_all",
    "get",
    "record_timing",
    "scalar",
    "scope",
    "scope_func_wrapper",
    "stat",
    "stat_compact",
]

_DEFAULT = StatsTracker()
_TRACKERS = {"": _DEFAULT}
_LOCK = threading.Lock()

# AReaL's names.
DistributedStatsTracker = StatsTracker
DEFAULT_TRACKER = _DEFAULT
TRACKERS = _TRACKERS

scalar = _DEFAULT.scalar
denominator = _DEFAULT.denominator
stat = _DEFAULT.stat
stat_compact = _DEFAULT.stat_compact
scope = _DEFAULT.scope
scope_func_wrapper = _DEFAULT.scope_func_wrapper
disable_scope = _DEFAULT.disable_scope
record_timing = _DEFAULT.record_timing
export = _DEFAULT.export


def get(name: str = "") -> StatsTracker:
    """The tracker of this name, made on first use; the default tracker for the empty name."""
    name = name.strip("/")
    with _LOCK:
        if name not in _TRACKERS:
            _TRACKERS[name] = StatsTracker(name)
        return _TRACKERS[name]


def absorb(exports: Iterable[Mapping[str, float]]) -> None:
    """Record the scalars of rollout workers as if their workflows had run here, so that the next export holds them.

    For a controller inside a run whose logger is not its own: the numbers join the run's record, weighted by how often
    each was recorded, also if several ranks control workers.

    Args:
        exports: what ``export_all()`` returned in each worker, with its ``__count`` keys.
    """
    rows: dict[str, Tensor] = {}
    merged = merge_worker_stats(exports)
    for key, value in merged.items():
        count = merged.get(key + COUNT_SUFFIX)
        if count is not None:
            rows[key] = torch.tensor((value * count, count, math.inf, -math.inf), dtype=torch.float64, device="cpu")
    with _DEFAULT.disable_scope():
        _DEFAULT.summaries(ReduceType.SCALAR, **rows)


def collect_all(*, reset: bool = True) -> Records:
    """This rank's records of every tracker, not reduced; equal keys (``timeperf/…``) are pooled."""
    with _LOCK:
        trackers = list(_TRACKERS.values())
    return pool_grouped(tracker.collect(reset=reset) for tracker in trackers)


def export_all(
    reduce_group: ProcessGroup | None = None, reset: bool = True, key_sync_group: ProcessGroup | None = None
) -> dict[str, float]:
    """Export every tracker at once; with a group a collective, like :meth:`StatsTracker.export`.

    A key that two trackers recorded as different kinds is left out everywhere, with one message.
    """
    groups = export_groups(reduce_group, key_sync_group)
    return export_grouped(collect_all(reset=reset), *groups, "export_all")
