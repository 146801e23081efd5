"""What the host of a session tells it while it trains: no arithmetic, no waiting, no communication."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.session.observation import Observation


class HostEvents:
    """The step path of a :class:`~areal_callbacks.session.MetricsSession`."""

    tracker: StatsTracker
    _observation: Observation
    _steps_since_reduced: int = 0

    def begin(self) -> None:
        """Training work starts; nothing happens if it has already."""
        if self._throughput is not None:
            self._throughput.begin()

    def end(self) -> None:
        """Training work ends; nothing happens if it has already."""
        if self._throughput is not None:
            self._throughput.end()

    def may_end(self) -> None:
        """Training work has ended here if a training forward comes next, and goes on if ``end`` does.

        For hosts that do not tell whether an optimizer step follows a backward.
        """
        if self._throughput is not None:
            self._throughput.may_end()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One training step of a plain loop: ``begin`` and ``end`` around the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()
            self._steps_since_reduced += 1

    def expect_optimizer(self, *, may_skip: bool = False) -> None:
        """The host will report its optimizer's steps (and those it skips): from now on zero of them is a number."""
        if self._throughput is not None:
            self._throughput.has_optimizer = True
            self._throughput.may_skip = self._throughput.may_skip or may_skip

    def optimizer_begin(self) -> None:
        """An optimizer is about to step."""
        if self._throughput is not None:
            self._throughput.optimizer_begin()

    def optimizer_end(self) -> None:
        """The optimizer has really stepped."""
        if self._throughput is not None:
            self._throughput.optimizer_end()

    def optimizer_skipped(self) -> None:
        """The optimizer has refused to step, for instance because of infinite gradients."""
        if self._throughput is not None:
            self._throughput.optimizer_skipped()

    def count_sequences(self, lengths: Any) -> None:
        """Count a batch whose lengths the host knows better than the forward's arguments, which then no longer count.

        Args:
            lengths: :class:`~areal_callbacks.monitors.throughput.lengths.Lengths`, or integers, or an integer tensor.
        """
        if self._throughput is not None:
            self._throughput.count(lengths)

    def count_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Count a batch that the host changes before its model sees it; forwards are ignored from then on.

        Args:
            inputs: keyword arguments of the model, as they were.
        """
        if self._throughput is not None:
            self._throughput.count_inputs(inputs)

    @contextlib.contextmanager
    def excluded(self, name: str | None = None) -> Iterator[None]:
        """Take a block out of the training time; with a name it is recorded as ``timeperf/<name>``."""
        training = None if self._throughput is None else self._throughput.training
        was_running = training is not None and training.running
        self.end()
        try:
            with self.tracker.record_timing(name) if name else contextlib.nullcontext():
                yield
        finally:
            if was_running:
                self.begin()

    @property
    def _throughput(self) -> ThroughputMonitor | None:
        return self._observation.throughput
