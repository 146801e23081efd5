"""Ranks with a throughput monitor each, on clocks that only their steps move."""

from __future__ import annotations

from typing import Any

import torch
from support.reductions import over_ranks

from areal_callbacks.core.records import Records
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.throughput.timer import WallTimer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Rank:
    """A monitor, its clock, and steps of a given duration."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        timers = (WallTimer(clock=self.clock), WallTimer(clock=self.clock))
        self.monitor = ThroughputMonitor(torch.device("cpu"), timers=timers, **options)

    def step(self, lengths: list[int], seconds: float, optimizer: float | None = None) -> None:
        width = max([1, *lengths])
        mask = torch.tensor([[1] * length + [0] * (width - length) for length in lengths])
        self.monitor.begin()
        self.monitor.on_inputs((), {"input_ids": mask, "attention_mask": mask}, last=False)
        self.clock.now += seconds - (optimizer or 0.0)
        if optimizer is not None:
            self.monitor.optimizer_begin()
            self.clock.now += optimizer
            self.monitor.optimizer_end()
        self.monitor.end()
        self.clock.now += 1000.0  # evaluation, checkpoints, waiting for data


def export(*ranks: Rank) -> dict[str, float]:
    """What all ranks together export; the totals are those of the first."""
    return derive(ranks[0], reduce(*ranks))


def reduce(*ranks: Rank) -> Records:
    return over_ranks(*(rank.monitor.collect() for rank in ranks))


def derive(rank: Rank, records: Records) -> dict[str, float]:
    rank.monitor.accumulate(records)
    return rank.monitor.derive(records)


def squares(length: int) -> int:
    return length * (length + 1)
