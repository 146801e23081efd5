"""Scripts of exports over real or simulated ranks: per rank a list of exports, an export being ``{family: contents}``.

What every rank returns is compared with the expectation and thereby with each other, bit for bit where no expectation
is rounded.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch
import torch.distributed as dist
from support.fake_ranks import SimulatedWorld
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.safety import reporting

NEXT = ["MAX", "SUM"]
SAME = [*NEXT, "MAX", *NEXT]
"""The collectives of an export with new keys, the same on every rank."""
DIFFERENT = [*NEXT, *["MAX"] * 5, *NEXT]
"""New keys that the ranks do not share."""


def contents(*, sums=None, maxima=None, **stats) -> Records:
    """Records of values per key: a list for AVG_MIN_MAX, ``(ReduceType, list)`` for the other kinds."""
    tracker = StatsTracker()
    for key, values in stats.items():
        kind, values = values if isinstance(values, tuple) else (None, values)
        if kind is ReduceType.SCALAR:
            for value in values:
                tracker.scalar(**{key: value})
        elif kind is ReduceType.DENOMINATOR:
            tracker.denominator(**{key: torch.tensor(values)})
        else:
            tensor = torch.tensor(values, dtype=torch.float64)
            tracker.stat_compact(torch.ones_like(tensor, dtype=torch.bool), kind, **{key: tensor})
    records = tracker.collect()
    for field, vectors in (("sums", sums), ("maxima", maxima)):
        for name, values in (vectors or {}).items():
            getattr(records, field)[name] = torch.tensor(values) if isinstance(values, list) else values
    return records


class Operations(TorchDispatchMode):
    """Counts collectives twice: as calls with their reduction, and as c10d operations of any kind."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.c10d: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.c10d.append(func.name().removeprefix("c10d::"))
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def counting(self):
        all_reduce = dist.all_reduce

        def reduced(tensor, op=dist.ReduceOp.SUM, group=None):
            self.calls.append("MAX" if op == dist.ReduceOp.MAX else "SUM")
            return all_reduce(tensor, op=op, group=group)

        dist.all_reduce = reduced
        try:
            with self:
                yield
        finally:
            dist.all_reduce = all_reduce


@contextlib.contextmanager
def heard():
    """The warnings logged inside the block."""
    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    reporting.reset()
    reporting.logger.addHandler(handler)
    try:
        yield messages
    finally:
        reporting.logger.removeHandler(handler)


def told(records) -> dict[str, str]:
    """Reduced records as plain values, floats exact and NaN comparable."""
    vectors = {**records.sums, **records.maxima}
    summaries = Records(records.keys, records.rows)  # the vectors here are no sums of formulas
    plain = {**summaries.metrics(), **{name: vector.tolist() for name, vector in vectors.items()}}
    return {name: repr(value) for name, value in plain.items()}


def run_script(group, script):
    """What a rank runs: (results, collective calls, messages)."""
    results, calls = [], []
    with heard() as messages:
        for export in script[dist.get_rank(group)]:
            families = {name: None if part is None else contents(**part) for name, part in export.items()}
            operations = Operations()
            with operations.counting():
                reduced = reduce(families, group, channel="test")
            assert operations.c10d == ["allreduce_"] * len(operations.calls)
            results.append({name: told(records) for name, records in reduced.items()})
            calls.append(operations.calls)
    return results, calls, messages


def run_everywhere(ranks, *script) -> Any:
    """What all ranks agree on: (results, collective calls, messages)."""
    first, *others = ranks.run(run_script, script)
    for other in others:
        assert other == first
    return first


def over_ranks(*parts: Records, exports: int = 1) -> Records:
    """What the last of some equal exports says, of one family over as many simulated ranks."""
    world = SimulatedWorld(len(parts))
    for _ in range(exports):
        reduced = world.run(lambda group: reduce({"family": parts[group.rank]}, group, "simulated"))
    return reduced[0]["family"]


def exactly(**values):
    return {name: repr(value) for name, value in values.items()}


def stats(**values):
    return {"stats": values}


def summary(name, average, minimum, maximum):
    return exactly(**{f"{name}/avg": average, f"{name}/min": minimum, f"{name}/max": maximum})
