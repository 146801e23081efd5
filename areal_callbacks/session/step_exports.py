"""For hosts whose log calls need not be made on every rank: the ranks meet at optimizer steps instead."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from areal_callbacks.session import MetricsSession

_open: weakref.WeakSet[StepExports] = weakref.WeakSet()


class StepExports:
    """Reduces at every ``every``-th optimizer step and hands over what has gathered when the host logs.

    Users log rarely, on the main process only, or not at all, so a log call is no place for a collective. An optimizer
    step is: every rank makes it. What was reduced since the last log call becomes one interval. What no log call has
    taken when the interpreter exits goes to the files.

    Args:
        session: the run.
        files_only: there is no tracker whose rows could be joined: every reduction becomes a row of the files, at its
            number of optimizer steps, whether the host logs or not.

    Attributes:
        steps: optimizer steps so far; equal on all ranks, except after :meth:`uneven`.
    """

    def __init__(self, session: MetricsSession, *, files_only: bool = False) -> None:
        self._session = session
        self._files_only = files_only
        self._since_reduced = 0
        self._reduced_at = 0
        self._logged: tuple[int | None, int, bool] | None = None
        self._uneven = False
        self._process = os.getpid()
        self.steps = 0
        _open.add(self)

    def boundary(self) -> None:
        """An optimizer has stepped, or was asked to: ends the training span. Collective at every ``every``-th call."""
        self._session.end()
        self.steps += 1
        self._since_reduced += 1
        if self._since_reduced >= self._session.config.every and not self._uneven:
            self.reduce()

    def reduce(self) -> None:
        """Reduce the steps since the last time, if there were any. Collective."""
        if self._since_reduced:
            self._reduce()

    def finish(self) -> None:
        """Reduce what is left, also what was recorded after the last step. Collective."""
        if self._since_reduced:
            self._reduce()
        else:
            self._session.reduce(measured=False)

    @contextlib.contextmanager
    def uneven(self) -> Iterator[None]:
        """The ranks make unequal numbers of steps inside, and meet at the end, unless that is an exception."""
        self._uneven = True
        try:
            yield
        finally:
            self._uneven = False
        self._reduce()

    def metrics(self, step: int | None, host: Mapping[str, Any] | None = None) -> dict[str, float]:
        """What to add to the host's row now; empty if nothing was reduced since the last row. Local.

        Args:
            step: the host's, None where it gives none.
            host: its row, for the files.
        """
        export = self._session.emit(self.steps if step is None or self._files_only else step, host)
        self._logged = (step, self.steps, export is not None)
        return {} if export is None else export.metrics

    @property
    def tail_step(self) -> int | None:
        """For a row after the last one: as many steps later as optimizer steps were made since.

        It may be that of the last row if that has none of our numbers.
        """
        if self._logged is None:
            return self.steps
        step, steps, is_taken = self._logged
        return None if step is None else step + max(int(is_taken), self.steps - steps)

    def flush(self) -> None:
        """Write what nobody has taken to the files. Local."""
        if self._session.has_pending and self._process == os.getpid():
            self._session.emit(self._reduced_at)

    def _reduce(self) -> None:
        if self._files_only:
            self.flush()
        self._since_reduced = 0
        self._reduced_at = self.steps
        self._session.reduce()


def _flush_all() -> None:
    for exports in list(_open):
        exports.flush()


# What threading registers runs last in, first out, so this comes before the publisher's own end.
getattr(threading, "_register_atexit", atexit.register)(_flush_all)
