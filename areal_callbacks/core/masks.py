"""The masks of a tracker's denominators, and which of them a stat is recorded over.

The i-th stat of a key since the last export belongs to the i-th mask of its denominator. Where a loop gives a mask,
records its stats, gives the next mask and so on, one mask is held at a time: it is dropped as soon as a later one is
used. Masks that are given in a burst are held for the stats that follow, and dropped when the mask after the burst is
given. A stat whose mask has been dropped belongs to the oldest one held, and its key goes on from there; a stat for
which no mask is left belongs to the latest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from areal_callbacks.safety.reporting import report_once

MOST_WAITING = 256
"""Masks of one denominator that are held for stats which have not come."""


class Masks:
    """Holds the masks of one tracker. Not thread-safe: its tracker holds the lock."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._numbers: dict[str, int] = {}

    def add(self, masks: Mapping[str, Tensor]) -> None:
        """Take copies of masks; the caller may change its own afterwards."""
        for key, mask in masks.items():
            self._queues.setdefault(key, _Queue()).add(mask.detach().clone())

    def find(self, denominators: Iterable[str]) -> str | None:
        """The first of these denominators that has a mask."""
        return next((key for key in denominators if key in self._queues and self._queues[key].held), None)

    @property
    def denominators(self) -> list[str]:
        """Those that have a mask, sorted."""
        return sorted(key for key, queue in self._queues.items() if queue.held)

    def next_of(self, denominator: str, key: str) -> Tensor:
        """The mask that the next stat of ``key`` belongs to."""
        queue = self._queues[denominator]
        return queue.held[queue.find_index(self._numbers.get(key, 0))].mask

    def use(self, denominator: str, keys: Iterable[str]) -> None:
        """A stat of each key was recorded over the mask that it belongs to."""
        queue = self._queues[denominator]
        for key in keys:
            number = self._numbers.get(key, 0)
            if number < queue.overflowed:
                report_once(
                    f"masks:{key}",
                    f"{MOST_WAITING} masks of {denominator!r} waited for stats that did not come: {key!r} is recorded "
                    "over the latest from here on. Record the stats of a mask before the next one, or use stat_compact",
                )
            self._numbers[key] = max(number, queue.use(number)) + 1

    def forget(self, denominator: str) -> None:
        """Drop the masks of one denominator; those that follow continue their numbering."""
        if denominator in self._queues:
            self._queues[denominator].clear()


@dataclass
class _Held:
    """A mask.

    Attributes:
        mask: bool, any shape.
        used: a stat was recorded over it.
        settled: that was before the next mask was given.
    """

    mask: Tensor
    used: bool = False
    settled: bool = False


class _Queue:
    """The masks of one denominator, numbered from 0 in the order in which they were given.

    Attributes:
        held: those not yet dropped.
        overflowed: masks below this number were dropped unused, because too many waited.
    """

    def __init__(self) -> None:
        self.held: deque[_Held] = deque()
        self.overflowed = 0
        self._first = 0
        self._used = -1

    def find_index(self, number: int) -> int:
        """Where the mask of this number is in ``held``, or the one that stands for it."""
        latest = len(self.held) - 1
        return latest if number < self.overflowed else min(max(number - self._first, 0), latest)

    def add(self, mask: Tensor) -> None:
        while self.held and self._first < self._used:
            self._drop()
        if len(self.held) == MOST_WAITING:
            self.overflowed = self.overflowed if self.held[0].used else self._first + 1
            self._drop()
        if self.held:
            self.held[-1].settled = self.held[-1].used
        self.held.append(_Held(mask))

    def use(self, number: int) -> int:
        """Use the mask of this number, drop those that are no longer waited for, and return its real number."""
        index = self.find_index(number)
        self.held[index].used = True
        taken = self._first + index
        self._used = max(self._used, taken)
        while self._first < self._used and self.held[0].settled:
            self._drop()
        return taken

    def clear(self) -> None:
        self._first += len(self.held)
        self.held.clear()

    def _drop(self) -> None:
        self.held.popleft()
        self._first += 1
