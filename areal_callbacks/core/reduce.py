"""One packed MAX and one packed SUM per export, over ranks that need not have recorded the same keys.

Every export on a process group starts with one ``all_reduce(MAX)`` of the group's agreed capacity. Its head is::

    [my keys are new, h, -h | ...

with ``h`` a hash of the agreed schema (:mod:`packing` has the rest). Where no rank has a new key, and all hold the same
schema, one ``all_reduce(SUM)`` of sums, counts and vectors follows. Otherwise all ranks gather their keys *and values*
as objects, merge them on the host and remember the union, so that the next export is two collectives again. Both
buffers have a size that all ranks agreed on: it changes only after a gather, in which all ranks took part. Everything
that can fail is done before the first collective, and nothing between the two may raise: a rank that left there would
hang the others.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from areal_callbacks.core.packing import HEAD, Buffers, Families, Plan, Signature, pack, signature, sizes, unpack
from areal_callbacks.core.records import Records
from areal_callbacks.core.schema import Schema
from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_BUCKET = 1024


class _Channel:
    """What the ranks of one group agreed on for one kind of export, and this rank's plan for it."""

    def __init__(self) -> None:
        self.learn(Schema())

    def learn(self, schema: Schema) -> None:
        """Agree on a schema; called with the same one on every rank."""
        self.schema = schema
        maximum, total = sizes(schema)
        self.capacity = _round_up(maximum), _round_up(total)
        self._signature: Signature | None = None
        self._plan: Plan | None = None

    def plan(self, families: Families) -> Plan | None:
        """Where these records lie in the buffers; None if some of their keys are new."""
        brought = signature(families)
        if brought != self._signature:
            mine = Schema.of(families)
            self._plan = Plan.of(self.schema, mine) if self.schema.covers(mine) else None
            self._signature = brought
        return self._plan


_CHANNELS: MutableMapping[ProcessGroup, dict[str, _Channel]] = weakref.WeakKeyDictionary()


def reduce(families: Families, group: ProcessGroup | None, channel: str) -> dict[str, Records]:
    """Reduce the families over the ranks of a group: a collective; all ranks return the same.

    Args:
        families: what this rank brings. Ranks may bring different families and keys, or none.
        group: None for this process alone.
        channel: names the caller; exports under one name share their agreed schema.

    Returns:
        CPU records, per family only what at least one rank recorded. A family that failed on any rank is absent, and
        one message says so.
    """
    if group is None:
        return _without_failed(_portable(families))
    known = _CHANNELS.setdefault(group, {}).setdefault(channel, _Channel())
    buffers = _prepare(families, known, buffer_device(group))
    dist.all_reduce(buffers.maximum, op=dist.ReduceOp.MAX, group=group)
    new_keys, identity, negated = buffers.maximum[:HEAD].tolist()
    if new_keys > 0 or identity != -negated:
        return _gather(families, known, group)
    dist.all_reduce(buffers.total, op=dist.ReduceOp.SUM, group=group)
    return _without_failed(unpack(known.schema, buffers))


def buffer_device(group: ProcessGroup) -> torch.device:
    """Where this group reduces: the CPU if it has a backend for that (``gloo``, ``cpu:gloo,cuda:nccl``), else the
    current device of its accelerator."""
    pairs = dist.get_backend_config(group).split(",")
    devices = [pair.partition(":")[0] for pair in pairs]
    if "cpu" in devices or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(devices[0], torch.accelerator.current_device_index())


def _prepare(families: Families, known: _Channel, device: torch.device) -> Buffers:
    """Both buffers, complete, before any collective. A rank that cannot pack asks for a gather, as if with new keys."""
    buffers = Buffers.sized(*known.capacity, device)
    try:
        plan = known.plan(families)
        if plan is not None:
            pack(plan, families, buffers)
    except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the collective
        report_once("reduce:pack", f"could not pack an export: {error!r}")
        plan = None
    identity = known.schema.identity
    head = torch.tensor((float(plan is None), identity, -identity), dtype=torch.float64, device=device)
    buffers.maximum[:HEAD] = head
    return buffers


def _gather(families: Families, known: _Channel, group: ProcessGroup) -> dict[str, Records]:
    """Merge everybody's values on the host and remember the union of the keys."""
    gathered: list[dict[str, Records | None]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(gathered, _portable(families), group=group)
    known.learn(functools.reduce(Schema.union, map(Schema.of, gathered), known.schema))
    merged: dict[str, Records | None] = {}
    for part in gathered:
        for name, records in part.items():
            merged[name] = _merged(merged.get(name, Records()), records)
    return _without_failed(merged)


def _merged(first: Records | None, second: Records | None) -> Records | None:
    """None, for failed, if either is or their vectors do not fit: the same conclusion on every rank."""
    if first is None or second is None:
        return None
    try:
        return first.merge_rank(second)
    except ValueError:
        return None


def _portable(families: Families) -> dict[str, Records | None]:
    """The families on the CPU, ready to be pickled; one whose values cannot be read counts as failed."""
    portable: dict[str, Records | None] = {}
    for name, records in families.items():
        try:
            portable[name] = None if records is None else records.portable()
        except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the gather
            report_once(f"reduce:{name}", f"could not read the values of {name!r}: {error!r}")
            portable[name] = None
    return portable


def _without_failed(families: Families) -> dict[str, Records]:
    for name, records in families.items():
        if records is None:
            report_once(
                f"family:{name}",
                f"{name!r} failed on a rank, or its ranks do not fit together: left out of the exports where it does",
            )
    return {name: records for name, records in families.items() if records is not None}


def _round_up(size: int) -> int:
    return max(1, math.ceil(size / _BUCKET)) * _BUCKET
