"""What one source brings to an export, and how two such bundles become one over time (over ranks: :mod:`reduce`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from areal_callbacks.core.formulas import derive_all
from areal_callbacks.core.summary import empty_rows, merge_rows_
from areal_callbacks.core.types import COUNT_SUFFIX, ReduceType
from areal_callbacks.safety.reporting import report_once

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
    rows       merge      merge       a row (sum, count, minimum, maximum) per (key, ReduceType)
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
        """Both intervals of one source as one: everything adds, summaries merge.

        Raises:
            ValueError: a vector changed its width.
        """
        pooled = pool([self, other])
        pooled.maxima = _join(self.maxima, other.maxima)
        return pooled

    def portable(self) -> Records:
        """A compact float64 copy on the CPU.

        Raises:
            ValueError: the tensors do not have the shapes that they should have.
        """

        def copy_all(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: _copy(vector, (len(vector),)) for name, vector in vectors.items()}

        return Records(self.keys, _copy(self.rows, (len(self.keys), 4)), copy_all(self.sums), copy_all(self.maxima))

    def metrics(self) -> dict[str, float]:
        """Every summary as exported numbers, once it is on the CPU; an empty population has no averages or extrema.

        A key that was recorded as several kinds, or whose exported name is another's too, is left out with one message.
        """
        layout = _layout(self.keys)
        for name, claimants in layout.conflicts.items():
            report_once(f"conflict:{name}", _message(name, claimants))
        table = torch.cat((self.rows, self.rows[:, :1] / self.rows[:, 1:2]), 1)
        values = dict(zip(layout.names, table.flatten()[layout.places].tolist()))
        for index in (self.rows[:, _COUNT] == 0).nonzero().flatten().tolist():
            key, kind = self.keys[index]
            if kind not in _MEANINGFUL_WHEN_EMPTY:
                for name in output_names(key, kind):
                    values.pop(name, None)
        for name, value in derive_all(self.sums).items():
            if name in values:
                report_once(f"conflict:{name}", f"{name!r} is recorded and derived: the recorded value is left out")
            values[name] = value
        return values


def pool(sources: Iterable[Records]) -> Records:
    """The summaries and sums of several trackers: equal keys of one kind merge, all else stands side by side."""
    sources = list(sources)
    pooled = _pool_rows([source for source in sources if source.keys])
    for source in sources:
        pooled.sums = _join(pooled.sums, source.sums)
    return pooled


def _pool_rows(filled: list[Records]) -> Records:
    if not filled:
        return Records()
    if len(filled) == 1:
        return Records(filled[0].keys, filled[0].rows)
    keys = tuple(dict.fromkeys(key for source in filled for key in source.keys))
    index_of = {key: index for index, key in enumerate(keys)}
    rows = empty_rows(len(keys), filled[0].rows.device)
    for source in filled:
        index = torch.tensor([index_of[key] for key in source.keys], device=rows.device)
        part = rows[index]
        merge_rows_(part, source.rows.to(rows.device))
        rows[index] = part
    return Records(keys, rows)


def _join(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the vectors of equal names."""
    joined = dict(first)
    for name, value in second.items():
        mine = joined.get(name)
        if mine is not None and mine.shape != value.shape:
            raise ValueError(f"{name!r} has {mine.numel()} values and {value.numel()}")
        joined[name] = value if mine is None else mine + value.to(mine.device)
    return joined


def _copy(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    if values.shape != shape:
        raise ValueError(f"expected a tensor of shape {list(shape)}, got {list(values.shape)}")
    return values.detach().to("cpu", torch.float64, copy=True)


class _Layout(NamedTuple):
    """The exported names of some keys, their places in the flattened ``[n, 5]`` table, and name → why it is missing."""

    names: list[str]
    places: Tensor
    conflicts: dict[str, list[Key]]


@functools.lru_cache(maxsize=64)
def _layout(keys: tuple[Key, ...]) -> _Layout:
    owners: dict[str, list[Key]] = {}
    for key in keys:
        for name in dict.fromkeys((key[0], *output_names(*key))):
            owners.setdefault(name, []).append(key)
    conflicts = {name: claimants for name, claimants in owners.items() if len(claimants) > 1}
    dropped = {key for claimants in conflicts.values() for key in claimants}
    exported = {
        key + suffix: 5 * index + column
        for index, (key, kind) in enumerate(keys)
        if (key, kind) not in dropped
        for suffix, column in _COLUMNS[kind]
    }
    places = torch.tensor(list(exported.values()), dtype=torch.long, device="cpu")
    return _Layout(list(exported), places, conflicts)


def _message(name: str, claimants: list[Key]) -> str:
    kinds = " and ".join(f"{key!r} as {kind.name}" for key, kind in claimants)
    return f"{name!r} is exported by {kinds}: these are left out until only one remains"
