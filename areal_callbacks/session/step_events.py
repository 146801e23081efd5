"""What a training loop tells a session between two exports."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.safety.door import guarded_block, guarded_entry
from areal_callbacks.session.observation import Observation
from areal_callbacks.session.spans import CountIn, leave_out


class StepEvents:
    """The events of the step path: no arithmetic, no waiting, no communication.

    Attributes:
        tracker: of the run.
    """

    tracker: StatsTracker
    _observation: Observation
    _steps_since_reduced: int

    @guarded_entry
    def begin(self) -> None:
        """Training work starts; nothing happens if it has already."""
        self._observation.throughput.begin()

    @guarded_entry
    def end(self) -> None:
        """Training work ends; nothing happens if it has already."""
        self._observation.throughput.end()

    @guarded_entry
    def may_end(self) -> None:
        """Training work has ended here if a training forward comes next, and goes on if ``end`` does."""
        self._observation.throughput.may_end()

    @guarded_block
    def step(self) -> Generator[None]:
        """One training step of a plain loop: ``begin`` and ``end`` around the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()
            self._steps_since_reduced += 1

    @guarded_entry
    def expect_optimizer(self, *, may_skip: bool = False) -> None:
        """The host will report its optimizer's steps (and those it skips): from now on zero of them is a number."""
        self._observation.throughput.expect_optimizer(may_skip=may_skip)

    @guarded_entry
    def optimizer_begin(self) -> None:
        """An optimizer is about to step."""
        self._observation.throughput.optimizer_begin()

    @guarded_entry
    def optimizer_end(self) -> None:
        """The optimizer has really stepped."""
        self._observation.throughput.optimizer_end()

    @guarded_entry
    def optimizer_skipped(self) -> None:
        """The optimizer has refused to step, for instance because of infinite gradients."""
        self._observation.throughput.optimizer_skipped()

    @guarded_entry
    def count_sequences(self, lengths: Any) -> None:
        """Count a batch whose lengths the host knows better than the forward's arguments, which then no longer count.

        Args:
            lengths: :class:`~areal_callbacks.monitors.throughput.lengths.Lengths`, or integers, or an integer tensor.
        """
        self._observation.throughput.count(lengths)

    @guarded_entry
    def count_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Count a batch that the host changes before its model sees it; forwards are ignored from then on.

        Args:
            inputs: keyword arguments of the model, as they were.
        """
        self._observation.throughput.count_inputs(inputs)

    @guarded_block
    def excluded(self, name: str | None = None) -> Generator[None]:
        """Take a block out of the training time; with a name it is recorded as ``timeperf/<name>``.

        Between two steps it is taken out of the waiting for data: evaluation, saving, logging.
        """
        timing = self.tracker.record_timing(name) if name else contextlib.nullcontext()
        with leave_out(self._observation.throughput), timing:
            yield

    @guarded_block
    def waiting(self) -> Generator[None]:
        """Take a block that waits for the next batch out of a training step, and count it as such."""
        with leave_out(self._observation.throughput, waits=True):
            yield

    @guarded_entry
    def forget_wait(self) -> None:
        """The time from the last step to the next one is not spent on waiting for data."""
        self._observation.throughput.forget_gap()

    @guarded_entry
    def stop(self) -> None:
        """Count nothing more; what was counted waits for the end of the session."""
        self._observation.stop()

    def included(self) -> AbstractContextManager[None]:
        """Count a block of training as a span of its own, unless one is open: what a host does before or after it."""
        return CountIn(self._observation.throughput)
