"""Tokens, training seconds, estimated FLOPs and optimizer steps of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from areal_callbacks.core.records import Records
from areal_callbacks.monitors.consumers import Kind
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput.frames import FrameCounter
from areal_callbacks.monitors.throughput.images import TowerFlops
from areal_callbacks.monitors.throughput.interval import LIMB, Interval, Totals, as_maxima, as_vectors, read_maxima
from areal_callbacks.monitors.throughput.known_batches import KnownBatches
from areal_callbacks.monitors.throughput.lengths import Lengths, Rows
from areal_callbacks.monitors.throughput.memory import read_memory
from areal_callbacks.monitors.throughput.model_lengths import batch_lengths, model_lengths, outermost_lengths
from areal_callbacks.monitors.throughput.sequences import NOTHING, SequenceCounts, Sequences
from areal_callbacks.monitors.throughput.slowest import SLOWEST, encode_rank
from areal_callbacks.monitors.throughput.timer import Timer, make_timer
from areal_callbacks.monitors.throughput.training_spans import TrainingSpans
from areal_callbacks.monitors.throughput.uncalled import UncalledModels
from areal_callbacks.safety.door import attempt, guarded
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

_UNREAD = "a batch could not be read"


class ThroughputMonitor(TrainingSpans):
    """Measures the training of one rank and derives the aggregate rates of all.

    :class:`~areal_callbacks.monitors.throughput.interval.Interval` lists the metrics.

    Args:
        device: where the model trains; decides the clock.
        estimator: training FLOPs of one sequence of a given length; None leaves the FLOPs metrics out.
        tower: FLOPs of the images that forwards are given, to be added; None without a vision tower.
        is_approximate: the estimator is only that.
        peak_flops: dense peak FLOP/s of this rank's devices together; None leaves the utilisation out.
        devices: that this rank drives.
        contributes_tokens: False on a rank whose sequences another rank counts.
        rank: of this process, for ``slowest_rank``.
        clock: wall-clock seconds.
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
        rank: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        token_count_fn: Callable[..., Any] | None = None,
        timers: tuple[Timer, Timer] | None = None,
    ) -> None:
        training, self.optimizer = timers or (make_timer(device), make_timer(device))
        super().__init__(training, clock)
        self.totals = Totals()
        self.has_optimizer = self.may_skip = self.host_counts = False
        self.estimator = estimator
        self.tower = tower
        self.peak_flops = peak_flops
        self._is_approximate = is_approximate
        self._devices = devices
        self._contributes_tokens = contributes_tokens
        self._device, self._rank = device, rank
        self._token_count_fn = token_count_fn
        self._sequences = SequenceCounts()
        self._batches = KnownBatches()
        self._frames = FrameCounter()
        self._uncalled = UncalledModels()
        self._has_read = False
        self._optimizer_steps = self._skipped_steps = 0

    # -- step path

    @guarded
    def on_consumed(self, kind: Kind, call: ForwardCall) -> None:
        """A model has consumed its inputs in a training forward."""
        if kind == "images" and self.tower is not None:
            self.tower.add(call.with_outer())
        if kind == "audio":
            self._frames.add(call.with_outer(), getattr(call.module, "config", None))
        if kind == "text" and not self.host_counts and self._token_count_fn is None:
            self._uncalled.discard(call)
            self._read(self._batches.read, call)

    @guarded
    def on_embedded(self, call: ForwardCall) -> None:
        """What was looked up counts if the model is not called until the export: then its ``forward`` was."""
        if not self.host_counts and self._token_count_fn is None:
            self._uncalled.add(call.module, attempt("throughput:batch", _UNREAD, model_lengths, call))

    @guarded
    def on_outermost(self, call: ForwardCall, *, has_models: bool) -> None:
        """The training forward of what the loop calls has ended; its arguments count where no model consumes text."""
        if self.host_counts:
            return
        if self._token_count_fn is not None:
            self._take(self._token_count_fn, *call.args, **call.kwargs)
        elif not has_models and not call.consumed:  # of sound and images alone: text is what other models take
            self._read(outermost_lengths, call)

    @guarded
    def count_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Count the sequences of a batch that the host changes before its model sees it."""
        self.host_counts = True
        self._read(batch_lengths, inputs)

    @guarded
    def count(self, lengths: Any) -> None:
        """Count sequences whose lengths the host knows better than the forward's arguments."""
        self.host_counts = True
        self._take(lambda: lengths)

    def _read(self, read: Callable[[Any], Lengths | Rows | None], given: Any) -> None:
        """A batch that raises when it is read costs the tokens of its interval."""
        self._has_read = True
        self._sequences.add_read(attempt("throughput:batch", _UNREAD, read, given))

    def _take(self, count: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._has_read = True
        told = attempt("throughput:batch", _UNREAD, lambda: self._sequences.add(count(*args, **kwargs)))
        self._sequences.unreadable += told is None

    @guarded
    def optimizer_begin(self) -> None:
        """An optimizer is about to step; the pending measurement of a step that was skipped is forgotten."""
        self.optimizer.restart()

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
        return not self._sequences.is_empty or not self._uncalled.is_empty or self._optimizer_steps > 0

    @property
    def rules(self) -> str:
        """What the lengths of sequences are read from."""
        return "token_count_fn" if self._token_count_fn is not None else "; ".join(sorted(self._sequences.rules))

    def leave_out_flops(self) -> None:
        """From now on no estimate holds for what is counted."""
        self.estimator = None

    # -- export

    def collect(self) -> Records:
        """This rank's interval, and start the next one. Waits once for the device."""
        self._has_read |= self._uncalled.join(self._sequences)
        trained = self._has_begun or self.has_work or self._sequences.unreadable > 0 or self._skipped_steps > 0
        is_blind = trained and not self._has_read
        maxima: dict[str, list[float]] = {
            "trained": [trained],
            **self.take_seconds(trained=trained),
            **self._take_time(is_blind),
        }
        taken = self._sequences.take()
        sequences = taken if self._contributes_tokens else NOTHING
        flops = self._take_flops(sequences)
        maxima |= {"without_flops": [flops is None], "approximate": [self._is_approximate]}
        sums: dict[str, list[float]] = {
            "tokens": [sequences.tokens],
            "frames": [self._frames.take() if self._contributes_tokens else 0],
            "flops": [0, 0] if flops is None else [flops // LIMB, flops % LIMB],
            "seconds": maxima["seconds"],
            "peak_flops": [self.peak_flops or 0.0],
            "devices": [self._devices],
            "ranks": [1],
        }
        peaks = {SLOWEST: encode_rank(maxima["seconds"][0], self._rank), **read_memory(self._device)}
        return Records(*as_maxima(peaks), sums=as_vectors(sums), maxima=as_vectors(maxima))

    def _take_time(self, is_blind: bool) -> dict[str, list[float]]:
        steps, self._optimizer_steps = self._optimizer_steps, 0
        skipped, self._skipped_steps = self._skipped_steps, 0
        unreadable = self._sequences.take_unreadable() + is_blind
        return {
            "interval": [1],
            "optimizer_seconds": [self.optimizer.take()],
            "optimizer_steps": [steps],
            "has_optimizer": [self.has_optimizer],
            "skipped_steps": [skipped],
            "may_skip": [self.may_skip],
            "has_frames": [self._frames.has_seen],
            "without_peak": [self.peak_flops is None],
            "unreadable": [unreadable if self._contributes_tokens else 0],
        }

    def _take_flops(self, sequences: Sequences) -> float | None:
        images = self.tower.take() if self.tower is not None else 0
        if self.estimator is None:
            return None
        try:
            flops = sequences.flops(self.estimator)
        except Exception as error:  # noqa: BLE001 - the estimator is the user's, perhaps
            report_once("flops:estimator", f"the FLOPs estimator failed, FLOPs are left out: {tell_error(error)}")
            self.estimator = None
            return None
        return None if flops is None else flops + (images if self._contributes_tokens else 0)

    def accumulate(self, reduced: Records) -> None:
        """Add a reduced interval to the totals."""
        self.totals.add(Interval.of(reduced))

    def derive(self, reduced: Records) -> dict[str, float]:
        """The metrics of a reduced interval, and of the run so far; none of an interval without training."""
        interval = Interval.of(reduced)
        if interval.is_idle:
            return {}
        if interval.tokens is None:
            report_once(
                "throughput:unreadable",
                "the arguments of a forward do not tell how many tokens it was given, or no model was called in it: "
                "tokens and FLOPs are left out; pass token_count_fn",
            )
        return {**interval.metrics(), **self.totals.metrics()}

    def derive_memory(self, reduced: Records) -> dict[str, float]:
        """The device memory of a reduced interval."""
        return {name: value for name, value in read_maxima(reduced).items() if name != SLOWEST}

    def state_dict(self) -> dict[str, Any]:
        """The totals, JSON-serialisable."""
        return asdict(self.totals)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the totals of an earlier run, all of them together.

        Raises:
            ValueError: a total is missing or no such number.
        """
        self.totals = Totals.parse(state)
