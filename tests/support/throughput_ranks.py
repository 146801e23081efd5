"""Ranks with a throughput monitor each, on clocks that only their steps move."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from support.clock import Clock
from support.reductions import over_ranks
from torch import nn

from areal_callbacks.core.records import Records
from areal_callbacks.monitors.consumers import Entry
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.throughput.timer import WallTimer

_MODULE = nn.Identity()


class Rank:
    """A monitor, its clock, and steps of a given duration."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        timers = (WallTimer(clock=self.clock), WallTimer(clock=self.clock))
        self.monitor = ThroughputMonitor(torch.device("cpu"), timers=timers, clock=self.clock, **options)

    def step(self, lengths: list[int], seconds: float, optimizer: float | None = None) -> None:
        width = max([1, *lengths])
        rows = [[1] * length + [0] * (width - length) for length in lengths]
        mask = torch.tensor(rows, dtype=torch.long).view(len(lengths), width)
        self.monitor.begin()
        self.consume(input_ids=mask, attention_mask=mask)
        self.clock.now += seconds - (optimizer or 0.0)
        if optimizer is not None:
            self.monitor.optimizer_begin()
            self.clock.now += optimizer
            self.monitor.optimizer_end()
        self.monitor.end()
        self.clock.now += 1000.0  # evaluation, checkpoints, waiting for data

    def consume(self, **inputs: Any) -> None:
        """A model is given these in a training forward."""
        self.monitor.on_consumed("text", forward_call(**inputs))

    def end_forward(self, *args: Any, **kwargs: Any) -> None:
        """A training forward of a root without models ends."""
        self.monitor.on_outermost(forward_call(*args, **kwargs), has_models=False)


def forward_call(*args: Any, **kwargs: Any) -> ForwardCall:
    return ForwardCall(Entry(weakref.ref(_MODULE), (), frozenset()), None, args, kwargs, trains=True)


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
