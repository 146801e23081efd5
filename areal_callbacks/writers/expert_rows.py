"""What a row of a tracker shows of the expert loads: drawings when they are due, and series of single experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from areal_callbacks.config import MoEBalanceConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.safety.reporting import report_once

MAX_SERIES = 128


class LoadsBetweenTables:
    """Sums the counts until a table is due.

    Args:
        every: exports with loads from one table to the next.
    """

    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"expert_table_every must be at least 1, got {every}")
        self._every = every
        self._seen = 0
        self._sum: ExpertLoads | None = None

    def add(self, loads: ExpertLoads | None) -> ExpertLoads | None:
        """The counts since the last table, if one is due with this export; an export without loads is passed over."""
        if not loads:
            return None
        self._sum = loads if self._sum is None else self._sum.merge(loads)
        self._seen += 1
        if self._seen < self._every:
            return None
        due, self._sum, self._seen = self._sum, None, 0
        return due


class ExpertScalars:
    """Two series per expert, for a tracker that can show so many.

    Args:
        setting: True: always; False: never; ``"auto"``: up to 128 series, above that never, with one message.
        tracker: the tracker's name, for the message.
    """

    def __init__(self, setting: bool | Literal["auto"], tracker: str) -> None:
        self._setting = setting
        self._tracker = tracker

    def list_values(self, loads: ExpertLoads | None) -> dict[str, float]:
        """``{"moe_balance/layer_<id>/expert_<id>/tokens": ..., ".../load_percent": ...}``."""
        if not loads or not self._wants(2 * sum(len(layer.counts) for layer in loads)):
            return {}
        series: dict[str, float] = {}
        for layer in loads:
            for expert, (tokens, load) in enumerate(zip(layer.counts.tolist(), layer.percentages())):
                series[f"{layer.prefix}/expert_{expert}/tokens"] = tokens
                series[f"{layer.prefix}/expert_{expert}/load_percent"] = load
        return series

    def _wants(self, series: int) -> bool:
        if self._setting != "auto" or series <= MAX_SERIES:
            return bool(self._setting)
        report_once(
            f"per expert scalars:{self._tracker}",
            f"{series:,} series, two per expert, are too many for {self._tracker} ({MAX_SERIES:,} at most), which gets"
            " a picture instead; per_expert_scalars: true turns them on, metrics.jsonl has all counts",
        )
        return False


class ExpertRows:
    """The part of a row that is about experts, export by export.

    Args:
        balance: how often to draw, and whether single experts are shown.
        tracker: its name, for messages.
        draw: turns the loads since the last drawing into values that the tracker's client takes.
    """

    def __init__(
        self, balance: MoEBalanceConfig, tracker: str, draw: Callable[[ExpertLoads], Mapping[str, Any]]
    ) -> None:
        self._loads = LoadsBetweenTables(balance.expert_table_every)
        self._scalars = ExpertScalars(balance.per_expert_scalars, tracker)
        self._draw = draw

    def add(self, loads: ExpertLoads | None, more: Mapping[str, float] | None = None) -> dict[str, Any]:
        """What the row of this export holds; empty without loads.

        Args:
            loads: of the export.
            more: further values of single experts, as committed.
        """
        due = self._loads.add(loads)
        series = {**self._scalars.list_values(loads), **(more or {})}
        return {**series, **({} if due is None else self._draw(due))}
