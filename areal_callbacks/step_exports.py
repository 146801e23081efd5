"""For hosts whose log calls need not be made on every rank: the ranks meet at optimizer steps instead."""

from __future__ import annotations

from collections.abc import Mapping

from areal_callbacks.session import MetricsSession


class StepExports:
    """Reduces at every ``every``-th optimizer step and hands over what has gathered when the host logs.

    Users log rarely, on the main process only, or not at all, so a log call is no place for a collective. An optimizer
    step is: every rank makes it. What was reduced since the last log call becomes one interval.

    Args:
        session: the run.

    Attributes:
        steps: optimizer steps so far, equal on all ranks.
    """

    def __init__(self, session: MetricsSession) -> None:
        self._session = session
        self._reduced_at = 0
        self.steps = 0

    def boundary(self) -> None:
        """An optimizer has stepped, or was asked to: ends the training span. Collective at every ``every``-th call."""
        self._session.end()
        self.steps += 1
        if self.steps % self._session.config.every == 0:
            self.reduce()

    def reduce(self) -> None:
        """Reduce the steps since the last time, if there were any. Collective."""
        if self.steps > self._reduced_at:
            self._reduced_at = self.steps
            self._session.reduce()

    def metrics(self, step: int | None, host: Mapping[str, float] | None = None) -> dict[str, float]:
        """What to add to the host's row now; empty if nothing was reduced since the last row. Local."""
        export = self._session.emit(self.steps if step is None else step, host)
        return {} if export is None else export.metrics
