"""Whether every rank of a training is measured, found out without a collective.

A rank may be measured alone: a callback is given to the main process only, as some loggers are, or could not begin on
one rank. Its first reduction would wait for ranks that never come. So each rank comes to a *round*, kept in the store
of the process groups, when its measurement begins, and asks for its result before the first reduction. One of two
results is decided, once for all ranks of a round: complete, by the last rank that comes; or alone, by the first rank
whose waiting timed out.

Before the first reduction the host has met on all ranks, in the gradients say, so all have come, and nobody waits.

Rounds are numbered so that all ranks of one training come to the same one, whatever some of them had before: by the
reductions of the group so far, which every rank counts alike, and by the trainings in which ranks were left alone.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from areal_callbacks.core.groups import name_of
from areal_callbacks.core.rendezvous import find_store, reductions_of, wait_for

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_COMPLETE, _ALONE = "complete", "alone"
_rounds: MutableMapping[ProcessGroup, str] = weakref.WeakKeyDictionary()
"""The last one that this rank came to, in which it counts once however many measurements it has."""


class Attendance:
    """This rank is measured from now on.

    Args:
        world: every training rank.

    Attributes:
        is_first: of the ranks that were left alone this one was the first to know.
    """

    def __init__(self, world: ProcessGroup) -> None:
        self._world = world
        self._process = os.getpid()
        self._key = self._number = self._round = self._result = ""
        self.is_first = False
        with contextlib.suppress(RuntimeError):  # there is no store, or one that only pretends to be one
            self._come(find_store())

    def is_complete(self) -> bool:
        """Whether every rank is measured, the same on all that ask; waits once, at most 30 seconds, for late ones.

        True where the ranks have no store in common: then nobody knows.
        """
        if not self._result:
            self._result = _COMPLETE
            with contextlib.suppress(RuntimeError):
                self._ask(find_store())
        return self._result == _COMPLETE

    def leave(self) -> None:
        """The measurement is over; ranks that were left alone may all come to the next one."""
        is_first, self.is_first = self.is_first, False
        if is_first and self._process == os.getpid():
            with contextlib.suppress(RuntimeError):
                self._begin_next(find_store())

    def _come(self, store: Any) -> None:
        if store is None:
            return
        self._key = f"areal_callbacks/attendance/{name_of(self._world)}"
        self._number = store.compare_set(self._key, "", "0").decode()
        name = f"{self._key}/{reductions_of(self._world)}/{self._number}"
        if _rounds.get(self._world) != name:
            _rounds[self._world] = name
            if store.add(f"{name}/ranks", 1) == dist.get_world_size(self._world):
                store.compare_set(name, "", _COMPLETE)
        self._round = name

    def _ask(self, store: Any) -> None:
        if store is None or not self._round:
            return
        wait_for(store, self._round)
        mine = f"{_ALONE}, found by rank {dist.get_rank(self._world)}"
        self._result = store.compare_set(self._round, "", mine).decode()
        self.is_first = self._result == mine

    def _begin_next(self, store: Any) -> None:
        if store is not None:
            store.compare_set(self._key, self._number, str(int(self._number) + 1))
