"""Throughput in plain numbers: one reduced interval, and the run so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.core.records import Key, Records
from areal_callbacks.core.types import ReduceType
from areal_callbacks.monitors.throughput.slowest import SLOWEST, decode_rank

LIMB = 1 << 26
"""FLOPs pass 2**53: they travel as two numbers, multiples of this and the rest, whose sums over ranks stay exact."""


@dataclass
class Totals:
    """Sums since the start of the run; None once an interval could not tell its tokens, or had no estimate."""

    tokens: int | None = 0
    seconds: float = 0.0
    flops: float | None = 0
    optimizer_steps: int = 0

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> Totals:
        """What ``asdict`` gave; ValueError where a total is missing or no such number."""
        if not isinstance(state, Mapping):
            raise ValueError(f"expected a mapping of totals, got {state!r:.60}")  # noqa: TRY004 - a damaged file
        values: dict[str, Any] = {field.name: state.get(field.name) for field in fields(cls)}
        for name, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            if not is_number and not (value is None and name in ("tokens", "flops") and name in state):
                raise ValueError(f"expected a number as total of {name}, got {value!r:.60}")
        return cls(**values)

    def add(self, interval: Interval) -> None:
        """One interval more."""
        self.tokens = None if interval.tokens is None or self.tokens is None else self.tokens + interval.tokens
        self.seconds += interval.seconds
        self.optimizer_steps += interval.optimizer_steps
        self.flops = None if interval.flops is None or self.flops is None else self.flops + interval.flops

    def metrics(self) -> dict[str, float]:
        """The cumulative metrics that these sums tell."""
        metrics = {"train_perf/total_seconds": self.seconds}
        if self.tokens is not None:
            metrics["train_perf/total_tokens"] = float(self.tokens)
        if self.seconds > 0:
            for name, amount in (("tokens", self.tokens), ("estimated_flops", self.flops)):
                if amount is not None:
                    metrics[f"train_perf/cumulative_{name}_per_second"] = amount / self.seconds
        return metrics


@dataclass(frozen=True)
class Interval:
    """A reduced interval in plain numbers; None for what could not be measured on every rank.

    Its metrics, and those of the :class:`Totals` with it:

    ================================================  ===================================================  =============
    Key                                               Meaning                                              Reduction
    ================================================  ===================================================  =============
    train_perf/tokens                                 logical tokens of the interval, padding left out     sum
    train_perf/input_frames                           frames of sound without padding, if models take any  sum
    train_perf/seconds                                training time of the interval                        maximum
    train_perf/seconds_mean                           the same, mean over ranks: the straggler gap         mean
    train_perf/seconds_min                            the same of the fastest rank                         minimum
    train_perf/slowest_rank                           the rank with the most seconds                       of maximum
    train_perf/data_wait_seconds                      between the steps, evaluation and saving left out    maximum
    train_perf/goodput                                seconds / wall-clock seconds since the last export   derived
    train_perf/tokens_per_second                      tokens / seconds                                     derived
    train_perf/tokens_per_second_per_device           tokens_per_second / devices of all ranks             derived
    train_perf/estimated_flops                        forward + backward FLOPs, summed over sequences      sum
    train_perf/estimated_flops_per_second             estimated_flops / seconds                            derived
    train_perf/estimated_flops_per_second_per_device  estimated_flops_per_second / devices of all ranks    derived
    train_perf/flops_are_approximate                  1 where the fallback estimates them, else absent     maximum
    train_perf/peak_flops_per_second                  dense peak of all devices, where all are known       sum
    train_perf/mfu                                    estimated_flops_per_second / peak_flops_per_second   derived
    train_perf/optimizer_steps                        real optimizer steps of the interval                 maximum
    train_perf/skipped_steps                          optimizer steps that the host skipped, if it tells   maximum
    train_perf/total_tokens                           tokens since the start of the run                    sum
    train_perf/total_seconds                          sum of the intervals' seconds                        derived
    train_perf/cumulative_tokens_per_second           total_tokens / total_seconds                         derived
    train_perf/cumulative_estimated_flops_per_second  total FLOPs / total_seconds                          derived
    timeperf/optimizer_step                           seconds per real optimizer step                      maximum
    ================================================  ===================================================  =============

    Attributes:
        is_idle: nothing was trained on any rank; at most a batch was moved, or gradients were zeroed.
    """

    tokens: int | None
    frames: int | None
    flops: float | None
    seconds: float
    seconds_mean: float
    seconds_min: float
    slowest_rank: int
    wait_seconds: float | None
    wall_seconds: float
    peak_flops: float | None
    devices: float
    is_approximate: bool
    optimizer_seconds: float
    optimizer_steps: int
    has_optimizer: bool
    skipped_steps: int | None
    is_idle: bool

    @classmethod
    def of(cls, reduced: Records) -> Interval:
        sums = {name: vector.tolist() for name, vector in reduced.sums.items()}
        maxima = {name: vector.tolist()[0] for name, vector in reduced.maxima.items()}
        readable, intervals = maxima["unreadable"] == 0, maxima["interval"]
        high, low = sums["flops"]
        flops = int(high) * LIMB + (int(low) if low.is_integer() else low)
        return cls(
            tokens=round(sums["tokens"][0]) if readable else None,
            frames=round(sums["frames"][0]) if maxima["has_frames"] > 0 else None,
            flops=flops if readable and maxima["without_flops"] == 0 else None,
            seconds=maxima["seconds"],
            seconds_mean=sums["seconds"][0] / (sums["ranks"][0] / intervals),
            seconds_min=-maxima["least_seconds"],
            slowest_rank=decode_rank(read_maxima(reduced)[SLOWEST]),
            wait_seconds=maxima["wait_seconds"] if maxima["waits"] > 0 else None,
            wall_seconds=maxima["wall_seconds"],
            peak_flops=sums["peak_flops"][0] / intervals if maxima["without_peak"] == 0 else None,
            devices=sums["devices"][0] / intervals,
            is_approximate=maxima["approximate"] > 0,
            optimizer_seconds=maxima["optimizer_seconds"],
            optimizer_steps=round(maxima["optimizer_steps"]),
            has_optimizer=maxima["has_optimizer"] > 0,
            skipped_steps=round(maxima["skipped_steps"]) if maxima["may_skip"] > 0 else None,
            is_idle=maxima["trained"] == 0,
        )

    def metrics(self) -> dict[str, float]:
        metrics = self._tell_time()
        for name, amount in (("tokens", self.tokens), ("estimated_flops", self.flops)):
            if amount is not None:
                metrics[f"train_perf/{name}"] = float(amount)
                if self.seconds > 0:
                    metrics[f"train_perf/{name}_per_second"] = amount / self.seconds
                    metrics[f"train_perf/{name}_per_second_per_device"] = amount / self.seconds / self.devices
        if self.frames is not None:
            metrics["train_perf/input_frames"] = float(self.frames)
        if self.flops is not None and self.is_approximate:
            metrics["train_perf/flops_are_approximate"] = 1.0
        if self.peak_flops is not None:
            metrics["train_perf/peak_flops_per_second"] = self.peak_flops
            if self.flops is not None and self.seconds > 0:
                metrics["train_perf/mfu"] = self.flops / self.seconds / self.peak_flops
        if self.skipped_steps is not None:
            metrics["train_perf/skipped_steps"] = float(self.skipped_steps)
        if self.has_optimizer:
            metrics["train_perf/optimizer_steps"] = float(self.optimizer_steps)
            if self.optimizer_steps:
                metrics["timeperf/optimizer_step"] = self.optimizer_seconds / self.optimizer_steps
        return metrics

    def _tell_time(self) -> dict[str, float]:
        metrics = {
            "train_perf/seconds": self.seconds,
            "train_perf/seconds_mean": self.seconds_mean,
            "train_perf/seconds_min": self.seconds_min,
            "train_perf/slowest_rank": float(self.slowest_rank),
        }
        if self.wait_seconds is not None:
            metrics["train_perf/data_wait_seconds"] = self.wait_seconds
        if self.wall_seconds > 0:
            metrics["train_perf/goodput"] = self.seconds / self.wall_seconds
        return metrics


def as_vectors(values: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    """Numbers as what :class:`Records` holds."""
    return {name: torch.tensor(numbers, dtype=torch.float64, device="cpu") for name, numbers in values.items()}


def read_maxima(records: Records) -> dict[str, float]:
    """What :func:`as_maxima` gave, over ranks and over time."""
    return {key: row[-1] for (key, _), row in zip(records.keys, records.rows.tolist())}


def as_maxima(values: Mapping[str, float]) -> tuple[tuple[Key, ...], Tensor]:
    """Keys and rows of numbers whose maximum counts, over ranks and over time."""
    rows = [[value, 1.0, value, value] for value in values.values()]
    return tuple((name, ReduceType.MAX) for name in values), torch.tensor(rows, dtype=torch.float64, device="cpu").view(
        -1, 4
    )
