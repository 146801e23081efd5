"""Joins the exports of rollout workers that do not share a process group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from areal_callbacks.core.types import COUNT_SUFFIX


def merge_worker_stats(exports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The average of every scalar over all workers, weighted by its ``<key>__count``.

    Args:
        exports: one unreduced export per worker. Workers may have different keys.

    Returns:
        Weighted averages and the summed ``__count`` keys, so that a merge of merges is the merge of all. Values without
        a positive count have no weight and are left out (tensor statistics belong to a reduced export).
    """
    totals: dict[str, float] = {}
    counts: dict[str, float] = {}
    for export in exports:
        for key, value in export.items():
            count = export.get(key + COUNT_SUFFIX, 0)
            if not key.endswith(COUNT_SUFFIX) and count > 0:
                totals[key] = totals.get(key, 0.0) + value * count
                counts[key] = counts.get(key, 0.0) + count
    merged: dict[str, float] = {}
    for key, total in totals.items():
        merged[key] = total / counts[key]
        merged[key + COUNT_SUFFIX] = counts[key]
    return merged
