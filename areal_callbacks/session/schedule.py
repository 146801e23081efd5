"""When the ranks of a run meet, and who gets what they reduced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from areal_callbacks.safety.at_exit import Order, at_exit

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export
    from areal_callbacks.session.session import MetricsSession


class Schedule:
    """Keeps what was reduced until the host takes it; what was not taken goes to the files at the end.

    Args:
        session: the run.
        progress: what the host had reached when it began.

    Attributes:
        progress: how far training is, as the host counts it: steps, batches or iterations; equal on all ranks.
    """

    def __init__(self, session: MetricsSession, progress: int = 0) -> None:
        self.session = session
        self.progress = progress
        self._reduced_at = progress
        self._process = os.getpid()
        at_exit(self, Schedule.flush, Order.FLUSH)

    def reduce(self, progress: int | None = None) -> None:
        """Reduce what came since the last time, if there was progress, e.g. for a checkpoint. Collective.

        Args:
            progress: what the host has reached, unless the schedule counts that itself.
        """
        self.progress = self.progress if progress is None else progress
        if self.progress != self._reduced_at:
            self._reduce()

    def finish(self, progress: int | None = None) -> None:
        """Training is over: reduce what is left, also what was recorded after the last step, if every rank is here.

        Args:
            progress: as for :meth:`reduce`.
        """
        self.progress = self.progress if progress is None else progress
        if not self.session.join():
            return
        self._reduce_rest()

    def keep(self) -> None:
        """Bring the totals up to date where that takes no other rank. Local: a process that trains alone reduces."""
        if self.session.topology.world is None:
            self._reduce_rest()

    def flush(self) -> Export | None:
        """Write what was reduced and not taken to the files; None if nothing was. Local."""
        if self.session.has_pending and self._process == os.getpid():
            return self.session.emit(self._reduced_at)
        return None

    def close(self) -> None:
        """End the run; training may have broken off, so the ranks do not meet. Local.

        A process that trains alone loses nothing: what came since the last row goes to the files.
        """
        self.keep()
        self.flush()
        self.session.close()

    def _reduce_rest(self) -> None:
        """Also what was recorded, or only begun, after the last step."""
        if self.progress != self._reduced_at:
            self._reduce()
        else:
            self.session.reduce(measured=self.session.has_work)

    def _reduce(self) -> None:
        self._reduced_at = self.progress
        self.session.reduce()


class LoggingEvents(Schedule):
    """For hosts that log at moments which all their ranks reach: reduces at the first of them after ``every`` steps.

    Used by Transformers, Lightning and Megatron. The numbers join the row that the host logs next.

    Args:
        session: the run.
        progress: what the host had reached when it began.
        steps: the optimizer steps that it had made, if progress is not counted in them.
    """

    def __init__(self, session: MetricsSession, progress: int = 0, steps: int | None = None) -> None:
        super().__init__(session, progress)
        self._steps = progress if steps is None else steps  # at the last export
        self._is_due = False

    def reached(self, progress: int, steps: int | None = None) -> bool:
        """The host is about to log a row; says whether our numbers are due in it. Collective if they are.

        Args:
            progress: how far training is, as the host counts it.
            steps: its optimizer steps so far, if progress is not counted in them; equal on all ranks.
        """
        steps, every = progress if steps is None else steps, self.session.config.every
        if every > 1 and steps - self._steps < every:
            return False
        self._steps = steps
        self.reduce(progress)
        self._is_due = True
        return True

    def finish(self, progress: int | None = None) -> None:
        """Training is over: the next row takes what is left, also what was recorded late."""
        super().finish(progress)
        self._is_due = self.session.has_pending

    def export(self, step: int, host: Mapping[str, Any] | None = None) -> Export | None:
        """What joins the row that the host logs now; None if nothing is due. Local.

        Args:
            step: the host's, of that row.
            host: its own scalars in that row, for the files.
        """
        if not self._is_due:
            return None
        self._is_due = False
        return self.session.emit(step, host)
