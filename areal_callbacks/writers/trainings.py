"""Which of the trainings in a metrics.jsonl a record belongs to; trials of a search share a folder, say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from areal_callbacks.writers.jsonl import Record, RunRecord


def number_trainings(records: Iterable[Record]) -> Iterator[tuple[int, Record]]:
    """Each record with the number of its training, counted from 0.

    A start that continues belongs to the training before it. If it does not tell, it continues where its first step
    lies behind that training's first one. A start that exported nothing belongs to what follows.
    """
    training, first = 0, None
    starts: list[RunRecord] = []
    for record in records:
        if isinstance(record, RunRecord):
            starts.append(record)
            continue
        if starts and first is not None and not _continues(starts, record.step, first):
            training, first = training + 1, None
        first = record.step if first is None else first
        yield from ((training, start) for start in starts)
        starts.clear()
        yield training, record
    yield from ((training, start) for start in starts)


def _continues(starts: list[RunRecord], step: int, first: int) -> bool:
    told = [start.resumes for start in starts if start.resumes is not None]
    return all(told) if told else step > first
