"""Tokens, training seconds, estimated FLOPs and optimizer steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.core.records import Records
from areal_callbacks.monitors.throughput.histogram import LengthHistogram
from areal_callbacks.monitors.throughput.images import TowerFlops
from areal_callbacks.monitors.throughput.interval import LIMB, Interval, Totals
from areal_callbacks.monitors.throughput.lengths import Lengths, sequence_lengths
from areal_callbacks.monitors.throughput.timer import Timer, make_timer
from areal_callbacks.safety.door import Observer, attempt, guarded
from areal_callbacks.safety.reporting import report_once


class ThroughputMonitor(Observer):
    """Measures the training of one rank and derives the aggregate rates of all.

    ================================================  ===================================================  =============
    Key                                               Meaning                                              Reduction
    ================================================  ===================================================  =============
    train_perf/tokens                                 logical tokens of the interval, padding left out     sum
    train_perf/seconds                                training time of the interval                        maximum
    train_perf/seconds_mean                           the same, mean over ranks: the straggler gap         mean
    train_perf/tokens_per_second                      tokens / seconds                                     derived
    train_perf/tokens_per_second_per_device           tokens_per_second / devices of all ranks             derived
    train_perf/estimated_flops                        forward + backward FLOPs, summed over sequences      sum
    train_perf/estimated_flops_per_second             estimated_flops / seconds                            derived
    train_perf/estimated_flops_per_second_per_device  estimated_flops_per_second / devices of all ranks    derived
    train_perf/flops_are_approximate                  1 where the fallback estimates them, else absent     maximum
    train_perf/peak_flops_per_second                  dense peak of all devices, where all are known       sum
    train_perf/mfu                                    estimated_flops_per_second / peak_flops_per_second   derived
    train_perf/optimizer_steps                        real optimizer steps of the interval                 maximum
    train_perf/skipped_steps                          optimizer steps that the host skipped, where it      maximum
                                                      tells
    train_perf/total_tokens                           tokens since the start of the run                    sum
    train_perf/total_seconds                          sum of the intervals' seconds                        derived
    train_perf/cumulative_tokens_per_second           total_tokens / total_seconds                         derived
    train_perf/cumulative_estimated_flops_per_second  total FLOPs / total_seconds                          derived
    timeperf/optimizer_step                           seconds per real optimizer step                      maximum
    ================================================  ===================================================  =============

    Args:
        device: where the model trains; decides the clock.
        estimator: training FLOPs of one sequence of a given length; None leaves the FLOPs metrics out.
        tower: FLOPs of the images that forwards are given, to be added; None without a vision tower.
        is_approximate: the estimator is only that.
        peak_flops: dense peak FLOP/s of this rank's devices together; None leaves the utilisation out.
        devices: that this rank drives.
        contributes_tokens: False on a rank whose sequences another rank counts.
        token_count_fn: called with the arguments of the outermost forward, returns the sequence lengths of the batch as
            integers, as a tensor or as :class:`Lengths`; replaces the reading of masks.

    Attributes:
        has_optimizer: optimizer steps are reported, so that zero of them is a number.
        may_skip: skipped optimizer steps are reported, so that zero of them is a number.
        host_counts: the host counts, forwards are not read.
        estimator: see Args; may be replaced before the first sequences are counted.
        peak_flops: see Args; may be set before an export.
        tower: see Args.
        totals: sums since the start of the run.
    """

    family = "throughput"

    def __init__(
        self,
        device: torch.device,
        *,
        estimator: Callable[[int], float] | None = None,
        tower: TowerFlops | None = None,
        is_approximate: bool = False,
        peak_flops: float | None = None,
        devices: int = 1,
        contributes_tokens: bool = True,
        token_count_fn: Callable[..., Any] | None = None,
        timers: tuple[Timer, Timer] | None = None,
    ) -> None:
        self.training, self.optimizer = timers or (make_timer(device), make_timer(device))
        self.totals = Totals()
        self.has_optimizer = False
        self.may_skip = False
        self.host_counts = False
        self.estimator = estimator
        self.tower = tower
        self.peak_flops = peak_flops
        self._is_approximate = is_approximate
        self._devices = devices
        self._contributes_tokens = contributes_tokens
        self._token_count_fn = token_count_fn
        self._lengths = LengthHistogram()
        self._unreadable_batches = 0
        self._optimizer_steps = 0
        self._skipped_steps = 0
        self._has_begun = False

    # -- step path

    def on_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last: bool) -> bool:
        """Count the sequences of a training forward; False where these arguments do not tell."""
        is_read = self.host_counts or self._read(args, kwargs, last) is not False
        if is_read and self.tower is not None:
            self._see_images(kwargs)
        return is_read

    def count_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Count the sequences of a batch that the host changes before its model sees it."""
        self.host_counts = True
        self._read((), inputs, True)

    @guarded
    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], last: bool) -> bool:
        if self._token_count_fn is not None:
            if last:
                self._add(self._token_count_fn(*args, **kwargs))
            return last
        lengths = sequence_lengths(args, kwargs)
        if lengths is not None:
            self._lengths.add(lengths)
        self._unreadable_batches += lengths is None and last
        return lengths is not None

    @guarded
    def _see_images(self, inputs: Mapping[str, Any]) -> None:
        if self.tower is not None:
            self.tower.add(inputs)

    @guarded
    def count(self, lengths: Any) -> None:
        """Count sequences whose lengths the host knows better than the forward's arguments."""
        self.host_counts = True
        self._add(lengths)

    @guarded
    def begin(self, *, trains: bool = True) -> None:
        """Training work starts, or what belongs to it and is no training by itself."""
        self._has_begun = self._has_begun or trains
        self.training.start()

    @guarded
    def end(self) -> None:
        """Training work ends."""
        self.training.stop()

    @guarded
    def may_end(self) -> None:
        """Training work has ended here if more begins next, and goes on if it is ended next."""
        self.training.may_stop()

    @guarded
    def optimizer_begin(self) -> None:
        """An optimizer is about to step; the pending measurement of a step that was skipped is forgotten."""
        self.optimizer.cancel()
        self.optimizer.start()

    @guarded
    def optimizer_end(self) -> None:
        """The optimizer has stepped."""
        self.optimizer.stop()
        self.has_optimizer = True
        self._optimizer_steps += 1

    @guarded
    def optimizer_skipped(self) -> None:
        """The optimizer has refused to step: counted, not timed."""
        self.optimizer.cancel()
        self.may_skip = True
        self._skipped_steps += 1

    def expect_optimizer(self, *, may_skip: bool = False) -> None:
        """Optimizer steps will be reported (and those that are skipped): from now on zero of them is a number."""
        self.has_optimizer = True
        self.may_skip = self.may_skip or may_skip

    @property
    def has_work(self) -> bool:
        """Something was trained since the last export: sequences or optimizer steps."""
        return not self._lengths.is_empty or self._optimizer_steps > 0

    @property
    def running(self) -> bool:
        """Inside a training span."""
        return self.training.running

    def _add(self, lengths: Any) -> None:
        if isinstance(lengths, Lengths):
            self._lengths.add(Lengths(lengths.values.detach().reshape(-1).clone(), lengths.bound))
        elif isinstance(lengths, Tensor):
            self._lengths.add_unbounded(lengths)
        else:
            self._lengths.add_host([int(lengths)] if isinstance(lengths, Integral) else lengths)

    def leave_out_flops(self) -> None:
        """From now on no estimate holds for what is counted."""
        self.estimator = None

    # -- export

    def collect(self) -> Records:
        """This rank's interval, and start the next one. Waits once for the device."""
        trained = self._has_begun or self.has_work or self._unreadable_batches > 0 or self._skipped_steps > 0
        self._has_begun = self.training.running
        seconds = self.training.take() if trained else 0.0  # a batch that was moved ahead waits for its training
        maxima: dict[str, list[float]] = {"trained": [trained], "seconds": [seconds], **self._take_time()}
        lengths = self._lengths.take()
        lengths = lengths if self._contributes_tokens else {}
        flops = self._take_flops(lengths)
        maxima["without_flops"] = [flops is None]
        maxima["approximate"] = [self._is_approximate]
        sums: dict[str, list[float]] = {
            "tokens": [sum(length * count for length, count in lengths.items())],
            "flops": [0, 0] if flops is None else [flops // LIMB, flops % LIMB],
            "seconds": maxima["seconds"],
            "peak_flops": [self.peak_flops or 0.0],
            "devices": [self._devices],
            "ranks": [1],
        }
        return Records(sums=_vectors(sums), maxima=_vectors(maxima))

    def _take_time(self) -> dict[str, list[float]]:
        steps, self._optimizer_steps = self._optimizer_steps, 0
        skipped, self._skipped_steps = self._skipped_steps, 0
        unreadable, self._unreadable_batches = self._unreadable_batches, 0
        return {
            "interval": [1],
            "optimizer_seconds": [self.optimizer.take()],
            "optimizer_steps": [steps],
            "has_optimizer": [self.has_optimizer],
            "skipped_steps": [skipped],
            "may_skip": [self.may_skip],
            "without_peak": [self.peak_flops is None],
            "unreadable": [unreadable if self._contributes_tokens else 0],
        }

    def _take_flops(self, lengths: Mapping[int, int]) -> float | None:
        images = self.tower.take() if self.tower is not None else 0
        if self.estimator is None:
            return None
        problem = "the FLOPs estimator failed, FLOPs are left out"
        flops = attempt("flops:estimator", problem, _total_flops, self.estimator, lengths)
        if flops is None:
            self.estimator = None
            return None
        return flops + (images if self._contributes_tokens else 0)

    def accumulate(self, reduced: Records) -> None:
        """Add a reduced interval to the totals."""
        interval = Interval.of(reduced)
        totals = self.totals
        totals.tokens = None if interval.tokens is None or totals.tokens is None else totals.tokens + interval.tokens
        totals.seconds += interval.seconds
        totals.optimizer_steps += interval.optimizer_steps
        totals.flops = None if interval.flops is None or totals.flops is None else totals.flops + interval.flops

    def derive(self, reduced: Records) -> dict[str, float]:
        """The metrics of a reduced interval, and of the run so far; none of an interval without training."""
        interval = Interval.of(reduced)
        if interval.is_idle:
            return {}
        if interval.tokens is None:
            report_once(
                "throughput:unreadable",
                "a forward's arguments do not tell how many tokens it was given, so tokens and FLOPs are left out; "
                "pass token_count_fn",
            )
        return {**interval.metrics(), **self.totals.metrics()}

    def state_dict(self) -> dict[str, Any]:
        """The totals, JSON-serialisable."""
        return asdict(self.totals)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the totals of an earlier run, all of them together.

        Raises:
            ValueError: a total is missing or no such number.
        """
        self.totals = Totals.parse(state)


def _total_flops(estimator: Callable[[int], float], lengths: Mapping[int, int]) -> float:
    flops = sum(count * estimator(length) for length, count in lengths.items())
    if not math.isfinite(flops):
        raise ValueError(f"it returned {flops}")
    return flops


def _vectors(values: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    return {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in values.items()}
