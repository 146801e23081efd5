"""For hosts whose log calls need not be made on every rank: the ranks meet at optimizer steps instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from areal_callbacks.session.schedule import Schedule

if TYPE_CHECKING:
    from areal_callbacks.session.session import MetricsSession


class StepExports(Schedule):
    """Reduces at every ``every``-th optimizer step and hands over what has gathered when the host logs.

    Users log rarely, on the main process only, or not at all, so a log call is no place for a collective. An optimizer
    step is: every rank makes it. What was reduced since the last log call becomes one interval. Its progress is the
    number of optimizer steps, equal on all ranks except after :meth:`uneven`.

    Args:
        session: the run.
        progress: steps before this run.
        files_only: there is no tracker whose rows could be joined: every reduction becomes a row of the files, at its
            number of optimizer steps, whether the host logs or not.
    """

    def __init__(self, session: MetricsSession, progress: int = 0, *, files_only: bool = False) -> None:
        super().__init__(session, progress)
        self._files_only = files_only
        self._logged: tuple[int | None, int, bool] | None = None
        self._is_uneven = False

    def boundary(self) -> None:
        """An optimizer has stepped, or was asked to: ends the training span. Collective at every ``every``-th call."""
        self.session.end()
        self.progress += 1
        if self.progress - self._reduced_at >= self.session.config.every and not self._is_uneven:
            self._reduce()

    @contextlib.contextmanager
    def uneven(self) -> Iterator[None]:
        """The ranks make unequal numbers of steps inside, and meet at the end, unless that is an exception."""
        self._is_uneven = True
        try:
            yield
        finally:
            self._is_uneven = False
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
        """For a row after the last one: as many steps later as optimizer steps were made since.

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
