"""Whether every rank has reached the end of a training, found out without a collective.

No host is collective where its training ends: one rank may have raised or died, or end alone
(``if accelerator.is_main_process: accelerator.end_training()``). A reduction there would raise or hang. So each rank
joins in the store of the process groups, and one of two results is decided, once for all ranks: a reduction, by the
last rank that joins; or none, by the first rank whose waiting timed out or that knows that it will not join.
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

TIMEOUT = 30.0
"""Seconds that a rank waits for the others; one that raises or exits leaves at once."""

_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_REDUCE, _END = "reduce", "end"

_reductions: MutableMapping[ProcessGroup, int] = weakref.WeakKeyDictionary()
_attempts: MutableMapping[ProcessGroup, tuple[int, int]] = weakref.WeakKeyDictionary()


def count_reduction(group: ProcessGroup) -> None:
    """The ranks of a group have reduced together: which numbers their rendezvous."""
    _reductions[group] = reductions_of(group) + 1


def reductions_of(group: ProcessGroup) -> int:
    """How often the ranks of a group have reduced together; equal on all of them."""
    return _reductions.get(group, 0)


class Rendezvous:
    """The end of one training.

    Args:
        world: every training rank; None for one process, which is always complete.
    """

    def __init__(self, world: ProcessGroup | None) -> None:
        self._world = world
        self._process = os.getpid()
        self._is_over = world is None
        if world is not None:
            at_exit(self, Rendezvous.leave, Order.FLUSH)

    def join(self) -> bool:
        """Whether all ranks have joined, the same on every rank; waits for them at most :data:`TIMEOUT` seconds."""
        if self._world is None:
            return True
        self.forget()
        complete = attempt("rendezvous:store", "the ranks could not tell each other that training is over", self._agree)
        if not complete:
            report_once(
                "rendezvous",
                "not every rank reached the end of training: what was measured since the last row is left out",
            )
        return bool(complete)

    def leave(self) -> None:
        """This rank will not join: the others need not wait. Again, or after :meth:`join`, does nothing."""
        if not self._is_over and self._process == os.getpid():
            self.forget()
            attempt(
                "rendezvous:store", "the other ranks could not be told that this one has left", self._decide_against
            )

    def forget(self) -> None:
        """This rank neither joins nor leaves any more."""
        self._is_over = True
        cancel(self)

    def _agree(self) -> bool:
        store, name = self._find_key()
        if store is None:
            return False
        if store.add(f"{name}/ranks", 1) == dist.get_world_size(self._world):
            store.compare_set(name, "", _REDUCE)
        wait_for(store, name)
        return bool(store.compare_set(name, "", _END).decode() == _REDUCE)

    def _decide_against(self) -> None:
        store, name = self._find_key()
        if store is not None:
            store.compare_set(name, "", _END)

    def _find_key(self) -> tuple[Any, str]:
        """The store and the name of this rendezvous in it; no store where the process groups are destroyed."""
        group = self._world
        store = find_store()
        if group is None or store is None:
            return None, ""
        reductions = reductions_of(group)
        at, attempts = _attempts.get(group, (reductions, 0))
        attempts = attempts + 1 if at == reductions else 1
        _attempts[group] = reductions, attempts
        name = f"areal_callbacks/end/{group.group_name}/{reductions}/{attempts}"
        return store, name


def find_store() -> Any:
    """What all ranks can read and write without a collective; None where the process groups are destroyed."""
    return dist.distributed_c10d._get_default_store() if dist.is_initialized() else None


def wait_for(store: Any, name: str) -> None:
    """Until it is decided, or for :data:`TIMEOUT` seconds. Polls: a store that waits would block its other users."""
    pause, deadline = _PAUSE, time.monotonic() + TIMEOUT
    while not store.check([name]) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
