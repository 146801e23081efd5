"""One packed MAX and one packed SUM per export, over ranks that need not have recorded the same keys.

Every export on a process group starts with one ``all_reduce(MAX)`` of the group's agreed capacity::

    [my keys are new, h, -h | family failed ... | -min, max, has NaN, recorded ... | vector present ... | maxima ...]

with ``h`` a hash of the agreed schema. Where no rank has a new key, and all hold the same schema, one ``all_reduce(SUM)``
of sums, counts and vectors follows. Otherwise all ranks gather their keys *and values* as objects, merge them on the
host and remember the union, so that the next export is two collectives again. Both buffers have a size that all ranks
agreed on: it changes only after a gather, in which all ranks took part. Everything that can fail is done before the first
collective, and nothing between the two may raise: a rank that left there would hang the others.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from areal_callbacks.core.packing import HEAD, Buffers, pack, unpack
from areal_callbacks.core.records import Records
from areal_callbacks.core.reporting import report_once
from areal_callbacks.core.schema import Schema

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Families: TypeAlias = Mapping[str, Records | None]
"""Name → records of one source; None where the source failed on this rank."""

_BUCKET = 1024


class _Channel:
    """What the ranks of one group agreed on for one kind of export."""

    def __init__(self) -> None:
        self.schema = Schema()

    @property
    def capacity(self) -> tuple[int, int]:
        """Sizes of the MAX and the SUM buffer: a constant first bucket, grown with the agreed schema."""
        return _round_up(HEAD + self.schema.max_size), _round_up(self.schema.sum_size)


_CHANNELS: MutableMapping[ProcessGroup, dict[str, _Channel]] = weakref.WeakKeyDictionary()


def reduce(families: Families, group: ProcessGroup | None, channel: str) -> dict[str, Records]:
    """Reduce the families over the ranks of a group: a collective; all ranks return the same.

    Args:
        families: what this rank brings. Ranks may bring different families and keys, or none.
        group: None for this process alone.
        channel: names the caller; exports under one name share their agreed schema.

    Returns:
        CPU records, per family only what at least one rank recorded. A family that failed on any rank is absent, and one
        message says so.
    """
    if group is None:
        return _without_failed({name: None if part is None else _on_cpu(part) for name, part in families.items()})
    known = _CHANNELS.setdefault(group, {}).setdefault(channel, _Channel())
    buffers = _prepare(families, known, buffer_device(group))
    dist.all_reduce(buffers.maximum, op=dist.ReduceOp.MAX, group=group)
    new_keys, identity, negated = buffers.maximum[:HEAD].tolist()
    if new_keys > 0 or identity != -negated:
        return _gather(families, known, group)
    dist.all_reduce(buffers.total, op=dist.ReduceOp.SUM, group=group)
    return _without_failed(unpack(known.schema, buffers))


def buffer_device(group: ProcessGroup) -> torch.device:
    """Where this group's backend reduces: the CPU for gloo, else the current accelerator."""
    if dist.get_backend(group) == "gloo" or not torch.accelerator.is_available():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    return torch.device("cpu" if accelerator is None else accelerator.type, torch.accelerator.current_device_index())


def _prepare(families: Families, known: _Channel, device: torch.device) -> Buffers:
    """Both buffers, complete, before any collective. A rank that cannot pack announces its families as failed."""
    max_capacity, sum_capacity = known.capacity
    buffers = Buffers(
        torch.full((max_capacity,), -math.inf, dtype=torch.float64, device=device),
        torch.zeros(sum_capacity, dtype=torch.float64, device=device),
    )
    try:
        new = not known.schema.covers(Schema.of(families))
        if not new:
            pack(known.schema, families, buffers)
    except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the collective
        report_once("reduce:pack", f"could not pack an export: {error!r}")
        new = True
    identity = known.schema.identity
    buffers.maximum[:HEAD] = torch.tensor([float(new), identity, -identity], dtype=torch.float64)
    return buffers


def _gather(families: Families, known: _Channel, group: ProcessGroup) -> dict[str, Records]:
    """Merge everybody's values on the host and remember the union of the keys."""
    gathered: list[dict[str, Records | None]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(gathered, _portable(families), group=group)
    merged: dict[str, Records | None] = {}
    for part in gathered:
        known.schema = known.schema.union(Schema.of(part))
        for name, records in part.items():
            mine = merged.get(name, Records())
            merged[name] = None if records is None or mine is None else mine.merge_rank(records)
    return _without_failed(merged)


def _portable(families: Families) -> dict[str, Records | None]:
    """The families on the CPU, ready to be pickled; one whose values cannot be read counts as failed."""
    portable: dict[str, Records | None] = {}
    for name, records in families.items():
        try:
            portable[name] = None if records is None else _on_cpu(records)
        except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the gather
            report_once(f"reduce:{name}", f"could not read the values of {name!r}: {error!r}")
            portable[name] = None
    return portable


def _on_cpu(records: Records) -> Records:
    def moved(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.detach().cpu().double() for name, value in vectors.items()}

    return Records(records.keys, records.rows.cpu(), moved(records.sums), moved(records.maxima))


def _without_failed(families: Mapping[str, Records | None]) -> dict[str, Records]:
    for name, records in families.items():
        if records is None:
            report_once(f"family:{name}", f"{name!r} failed on a rank: it is left out of the exports on which it fails")
    return {name: records for name, records in families.items() if records is not None}


def _round_up(size: int) -> int:
    return max(1, math.ceil(size / _BUCKET)) * _BUCKET
