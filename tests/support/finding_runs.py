"""Histories for the rules: series by hand, on disk where the real reader has to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from areal_callbacks.findings import Finding, find
from areal_callbacks.report.history import History, Series
from areal_callbacks.report.snapshots import Snapshot


@dataclass
class Columns:
    """key → one value per export, None where the key was not exported; a step every ten."""

    series: Mapping[str, Sequence[float | None]]
    snapshots: Sequence[Snapshot] = ()
    resumed_at: Sequence[int] = field(default_factory=tuple)

    def history(self) -> History:
        exports = max(map(len, self.series.values()), default=len(self.snapshots))
        steps = list(range(10, 10 * exports + 1, 10))
        series = {key: _make_series(values) for key, values in self.series.items()}
        return History(
            "run", steps=steps, series=series, snapshots=list(self.snapshots), resumed_at=list(self.resumed_at)
        )


def _make_series(values: Sequence[float | None]) -> Series:
    kept = [(index, float(value)) for index, value in enumerate(values) if value is not None]
    return Series([index for index, _ in kept], [value for _, value in kept])


def diagnose(
    snapshots: Sequence[Snapshot] = (), resumed_at: Sequence[int] = (), **series: Sequence[float | None]
) -> list[Finding]:
    """The findings of series whose names have ``__`` for ``/``."""
    named = {key.replace("__", "/"): values for key, values in series.items()}
    return find(Columns(named, snapshots, resumed_at).history())


def noisy(level: float, exports: int, noise: float = 0.03, seed: int = 0) -> list[float]:
    """``level`` with normal noise of that relative size."""
    return list(level * (1 + noise * np.random.default_rng(seed).standard_normal(exports)))
