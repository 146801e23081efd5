"""What one source brings to an export, and how two such bundles become one: over time, or over ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from areal_callbacks.core.reporting import report_once
from areal_callbacks.core.summary import empty_rows, merge_rows_
from areal_callbacks.core.types import COUNT_SUFFIX, ReduceType

Key: TypeAlias = tuple[str, ReduceType]

_SUM, _COUNT, _MINIMUM, _MAXIMUM, _MEAN = range(5)
_COLUMNS: Mapping[ReduceType, tuple[tuple[str, int], ...]] = {
    ReduceType.AVG_MIN_MAX: (("/avg", _MEAN), ("/min", _MINIMUM), ("/max", _MAXIMUM)),
    ReduceType.AVG: (("", _MEAN),),
    ReduceType.SUM: (("", _SUM),),
    ReduceType.MIN: (("", _MINIMUM),),
    ReduceType.MAX: (("", _MAXIMUM),),
    ReduceType.SCALAR: (("", _MEAN), (COUNT_SUFFIX, _COUNT)),
    ReduceType.DENOMINATOR: (("", _COUNT),),
}
_MEANINGFUL_WHEN_EMPTY = (ReduceType.SUM, ReduceType.DENOMINATOR)


def output_names(key: str, reduce_type: ReduceType) -> list[str]:
    """The exported names of a key, e.g. ``loss/avg``, ``loss/min`` and ``loss/max``."""
    return [key + suffix for suffix, _ in _COLUMNS[reduce_type]]


@dataclass
class Records:
    """Numbers that can be reduced, each with its operation over time and over ranks.

    =========  =========  ==========  ==========================================================
    Field      Over time  Over ranks  Holds
    =========  =========  ==========  ==========================================================
    summaries  merge      merge       a row (sum, count, minimum, maximum) per (key, ReduceType)
    sums       add        add         vectors: tokens, FLOPs, expert counts
    maxima     add        maximum     vectors: seconds, optimizer steps
    =========  =========  ==========  ==========================================================

    Attributes:
        keys: the keys of ``rows``, without repetition.
        rows: float64 ``[len(keys), 4]``.
        sums: name → 1-D tensor whose values are exact in float64 (integers below 2**53).
        maxima: name → 1-D tensor.
    """

    keys: tuple[Key, ...] = ()
    rows: Tensor = field(default_factory=lambda: empty_rows(0))
    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)

    def merge(self, other: Records) -> Records:
        """Both intervals of one source as one: everything adds, summaries merge."""
        return self._combine(other, torch.add)

    def merge_rank(self, other: Records) -> Records:
        """The same interval of two ranks as one: sums add, maxima take the larger."""
        return self._combine(other, torch.maximum)

    def _combine(self, other: Records, maxima_operation: torch._C.ScriptMethod) -> Records:
        pooled = pool([self, other])
        pooled.sums = _join(self.sums, other.sums, torch.add)
        pooled.maxima = _join(self.maxima, other.maxima, maxima_operation)
        return pooled

    def metrics(self) -> dict[str, float]:
        """Every summary as exported numbers; an empty population has no averages or extrema."""
        names, places, empties = _layout(self.keys)
        table = torch.cat((self.rows, self.rows[:, :1] / self.rows[:, 1:2]), 1)
        values = dict(zip(names, table.flatten()[places].tolist()))
        if bool((self.rows[:, _COUNT] == 0).any()):
            for index in (self.rows[:, _COUNT] == 0).nonzero().flatten().tolist():
                for name in empties[index]:
                    values.pop(name, None)
        return values


def pool(sources: Iterable[Records]) -> Records:
    """The summaries of several trackers together: equal keys of one kind are merged, everything else stands side by side."""
    filled = [source for source in sources if source.keys]
    if not filled:
        return Records()
    if len(filled) == 1:
        return Records(filled[0].keys, filled[0].rows)
    keys = tuple(dict.fromkeys(key for source in filled for key in source.keys))
    place = {key: index for index, key in enumerate(keys)}
    rows = empty_rows(len(keys), filled[0].rows.device)
    for source in filled:
        index = torch.tensor([place[key] for key in source.keys], device=rows.device)
        part = rows[index]
        merge_rows_(part, source.rows.to(rows.device))
        rows[index] = part
    return Records(keys, rows)


def _join(first: dict[str, Tensor], second: dict[str, Tensor], operation: torch._C.ScriptMethod) -> dict[str, Tensor]:
    joined = dict(first)
    for name, value in second.items():
        joined[name] = operation(joined[name], value.to(joined[name].device)) if name in joined else value
    return joined


@functools.lru_cache(maxsize=64)
def _layout(keys: tuple[Key, ...]) -> tuple[list[str], Tensor, list[list[str]]]:
    """Names, their places in the flattened ``[n, 5]`` table, and per row the names that an empty population lacks."""
    producers: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        for name in output_names(*key):
            producers.setdefault(name, []).append(index)
    clashing = {index for rows in producers.values() if len(rows) > 1 for index in rows}
    for name, rows in producers.items():
        if len(rows) > 1:
            kinds = " and ".join(keys[index][1].name for index in rows)
            report_once(f"conflict:{name}", f"{name!r} was recorded as {kinds}: it is left out until only one remains")
    names: list[str] = []
    places: list[int] = []
    for index, (key, reduce_type) in enumerate(keys):
        if index not in clashing:
            for suffix, column in _COLUMNS[reduce_type]:
                names.append(key + suffix)
                places.append(5 * index + column)
    empties = [[] if kind in _MEANINGFUL_WHEN_EMPTY else output_names(key, kind) for key, kind in keys]
    return names, torch.tensor(places, dtype=torch.long), empties
