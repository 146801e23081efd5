"""Which of the trainings in a metrics.jsonl a record belongs to; trials of a search share a folder, say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

from areal_callbacks.writers.metrics_file import PackedRecord, RunRecord

Item = TypeVar("Item")


class TrainingCounter(Generic[Item]):
    """Numbers items one by one, in a file that is still written.

    A start that continues belongs to the training before it. If it does not tell, it continues where its first step
    lies behind that training's first one. A start that exported nothing belongs to what follows.
    """

    def __init__(self) -> None:
        self._training = 0
        self._first: int | None = None
        self._starts: list[tuple[Item, RunRecord]] = []

    def add(self, item: Item, record: PackedRecord) -> Iterator[tuple[int, Item]]:
        """What has its number now: nothing after a start, later the starts before an item and the item itself."""
        if isinstance(record, RunRecord):
            self._starts.append((item, record))
            return
        starts = [start for _, start in self._starts]
        if starts and self._first is not None and not _continues(starts, record.step, self._first):
            self._training, self._first = self._training + 1, None
        self._first = record.step if self._first is None else self._first
        yield from self.rest()
        yield self._training, item

    def rest(self) -> Iterator[tuple[int, Item]]:
        """Starts without anything behind them."""
        starts, self._starts = self._starts, []
        yield from ((self._training, start) for start, _ in starts)


def number_trainings(
    items: Iterable[Item], record_of: Callable[[Item], PackedRecord] = lambda item: cast("PackedRecord", item)
) -> Iterator[tuple[int, Item]]:
    """Each record, or item that holds one, with the number of its training, counted from 0; see the counter."""
    counter = TrainingCounter[Item]()
    for item in items:
        yield from counter.add(item, record_of(item))
    yield from counter.rest()


def _continues(starts: list[RunRecord], step: int, first: int) -> bool:
    told = [start.resumes for start in starts if start.resumes is not None]
    return all(told) if told else step > first
