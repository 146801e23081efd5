"""For hosts whose log calls need not be made on every rank: the ranks meet where gradients are synchronised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from areal_callbacks.session.schedule import Schedule

if TYPE_CHECKING:
    from areal_callbacks.session.session import MetricsSession


class StepExports(Schedule):
    """Reduces at every ``every``-th step and hands over what has gathered when the host logs.

    Users log rarely, on the main process only, or not at all, so a log call is no place for a collective. Nor is an
    optimizer step, which a rank may refuse. Where several ranks train, a step is a backward that synchronises
    gradients: the host's own collective. The optimizer step that follows it counts in the next interval. In one process
    a step is an optimizer step, refused or not.

    What was reduced since the last log call becomes one interval. Progress is the number of steps, equal on all ranks.

    Args:
        session: the run.
        progress: steps before this run.
        files_only: there is no tracker whose rows could be joined: every reduction becomes a row of the files, at its
            number of steps, whether the host logs or not.
    """

    def __init__(self, session: MetricsSession, progress: int = 0, *, files_only: bool = False) -> None:
        super().__init__(session, progress)
        self._files_only = files_only
        self._start = progress
        self._logged: tuple[int | None, int, bool] | None = None
        self._is_uneven = False

    def boundary(self) -> None:
        """An optimizer has stepped, or was asked to: ends the training span. Local."""
        self.session.end()
        if self.session.topology.is_one_process and self._advance():
            self._reduce()

    def after_synchronisation(self) -> None:
        """Gradients are the same on all ranks, where there are several. Collective at every ``every``-th call."""
        if not self.session.topology.is_one_process and self._advance():
            with self.session.excluded():
                self._reduce()
            self.session.may_end()

    def _advance(self) -> bool:
        """One step more; says whether a reduction is due."""
        if self._is_uneven:
            return False
        self.progress += 1
        return (self.progress - self._start) % self.session.config.every == 0

    def begin_uneven(self) -> None:
        """From now on the ranks make unequal numbers of steps."""
        self._is_uneven = True

    def end_uneven(self, *, is_complete: bool) -> None:
        """The ranks make equal numbers of steps again. Collective if ``is_complete``: all of them have come here."""
        self._is_uneven = False
        if is_complete:
            self._reduce()

    def metrics(self, step: int | None, host: Mapping[str, Any] | None = None) -> dict[str, float]:
        """What to add to the host's row now; empty if nothing was reduced since the last row. Local.

        Args:
            step: the host's, None where it gives none.
            host: its row, for the files.
        """
        export = self.session.emit(self.progress if step is None or self._files_only else step, host)
        self._logged = (step, self.progress, export is not None)
        return {} if export is None else export.metrics

    @property
    def tail_step(self) -> int | None:
        """For a row after the last one: as many steps later as were made since.

        It may be that of the last row if that has none of our numbers.
        """
        if self._logged is None:
            return self.progress
        step, progress, is_taken = self._logged
        return None if step is None else step + max(int(is_taken), self.progress - progress)

    def _reduce(self) -> None:
        if self._files_only:
            self.flush()
        super()._reduce()
