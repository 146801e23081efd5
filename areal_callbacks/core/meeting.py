"""Whether every rank has come to the end of a training, asked without a collective.

No host is collective where its training ends: one rank may have raised or died, or end alone
(``if accelerator.is_main_process: accelerator.end_training()``). A reduction there would raise or hang. So each rank
says in the store of the process groups that it is there, and one of two things is decided, once for all ranks: to
reduce, by the rank that comes last, or to part, by the first one that waited in vain or knows that it will not come.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from areal_callbacks.safety.at_exit import Order, at_exit, cancel
from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PATIENCE = 30.0
"""Seconds that a rank waits for the others; a rank that raises or exits says so at once."""

_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_REDUCE, _PART = "reduce", "part"

_reductions: MutableMapping[ProcessGroup, int] = weakref.WeakKeyDictionary()
_attempts: MutableMapping[ProcessGroup, tuple[int, int]] = weakref.WeakKeyDictionary()


def count_reduction(group: ProcessGroup) -> None:
    """The ranks of a group have reduced together: what tells them which of their meetings is which."""
    _reductions[group] = _reductions.get(group, 0) + 1


class Meeting:
    """The end of one training.

    Args:
        world: every training rank; None for one process, which is always complete.
    """

    def __init__(self, world: ProcessGroup | None) -> None:
        self._world = world
        self._process = os.getpid()
        self._is_over = world is None
        if world is not None:
            at_exit(self, Meeting.stay_away, Order.FLUSH)

    def come(self) -> bool:
        """Whether all ranks are here, the same on every rank; waits for them at most :data:`PATIENCE` seconds."""
        if self._world is None:
            return True
        self._end()
        complete = attempt("meeting:store", "the ranks could not tell each other that training is over", self._agree)
        if not complete:
            report_once("meeting", "not every rank came to the end: what was measured since the last row is left out")
        return bool(complete)

    def stay_away(self) -> None:
        """This rank will not come: the others need not wait. Again, or after :meth:`come`, does nothing."""
        if not self._is_over and self._process == os.getpid():
            self._end()
            attempt("meeting:store", "the other ranks could not be told that this one has left", self._leave)

    def _end(self) -> None:
        self._is_over = True
        cancel(self)

    def _agree(self) -> bool:
        store, name = self._place()
        if store is None:
            return False
        if store.add(f"{name}/ranks", 1) == dist.get_world_size(self._world):
            store.compare_set(name, "", _REDUCE)
        _wait(store, name)
        return bool(store.compare_set(name, "", _PART).decode() == _REDUCE)

    def _leave(self) -> None:
        store, name = self._place()
        if store is not None:
            store.compare_set(name, "", _PART)

    def _place(self) -> tuple[Any, str]:
        """The store and the name of this meeting in it; no store where the process groups are destroyed."""
        group = self._world
        if group is None or not dist.is_initialized():
            return None, ""
        reductions = _reductions.get(group, 0)
        at, attempts = _attempts.get(group, (reductions, 0))
        attempts = attempts + 1 if at == reductions else 1
        _attempts[group] = reductions, attempts
        name = f"areal_callbacks/end/{group.group_name}/{reductions}/{attempts}"
        return dist.distributed_c10d._get_default_store(), name


def _wait(store: Any, name: str) -> None:
    """Until it is decided or patience ends. Asks again and again: a waiting store would block its other users."""
    pause, deadline = _PAUSE, time.monotonic() + PATIENCE
    while not store.check([name]) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
