"""Which of the trainings in a metrics.jsonl a record belongs to; trials of a search share a folder, say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

from areal_callbacks.writers.metrics_file import PackedRecord, RunRecord

Item = TypeVar("Item")


def number_trainings(
    items: Iterable[Item], record_of: Callable[[Item], PackedRecord] = lambda item: cast("PackedRecord", item)
) -> Iterator[tuple[int, Item]]:
    """Each record, or item that holds one, with the number of its training, counted from 0.

    A start that continues belongs to the training before it. If it does not tell, it continues where its first step
    lies behind that training's first one. A start that exported nothing belongs to what follows.
    """
    training, first = 0, None
    starts: list[tuple[Item, RunRecord]] = []
    for item in items:
        record = record_of(item)
        if isinstance(record, RunRecord):
            starts.append((item, record))
            continue
        if starts and first is not None and not _continues([start for _, start in starts], record.step, first):
            training, first = training + 1, None
        first = record.step if first is None else first
        yield from ((training, start) for start, _ in starts)
        starts.clear()
        yield training, item
    yield from ((training, start) for start, _ in starts)


def _continues(starts: list[RunRecord], step: int, first: int) -> bool:
    told = [start.resumes for start in starts if start.resumes is not None]
    return all(told) if told else step > first
