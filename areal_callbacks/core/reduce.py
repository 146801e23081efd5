"""One packed MAX and one packed SUM per export, over ranks that need not have recorded the same keys.

Every export on a process group is one ``all_reduce(MAX)`` and one ``all_reduce(SUM)`` of the group's agreed capacity,
and one copy to the host. The head of the MAX buffer is::

    [my keys are new, h, -h | ...

with ``h`` a hash of the agreed schema (:mod:`packing` has the rest). Where a rank has a new key, or schemas differ, the
buffers hold nothing else; the ranks agree on a schema (:mod:`agreement`) and reduce again, so that the next export is
two collectives again. No values travel in another way, and nothing costs the number of ranks.

Buffers have a size that all ranks agreed on. Everything that can fail is tried before the first collective, and nothing
between collectives may raise: a rank that left there would hang the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from areal_callbacks.core.agreement import Ranks, agree
from areal_callbacks.core.channel import Channel, Fit
from areal_callbacks.core.packing import HEAD, Buffers, Families, Plan, pack, sizes, unpack
from areal_callbacks.core.records import Records
from areal_callbacks.core.rendezvous import count_reduction
from areal_callbacks.core.schema import Schema
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_CHANNELS: MutableMapping[ProcessGroup, dict[str, Channel]] = weakref.WeakKeyDictionary()


class _Packed(NamedTuple):
    """This rank's contribution to the next two collectives."""

    families: Families
    fit: Fit
    buffers: Buffers


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
        return _without_failed(_readable(families, Records.portable))
    count_reduction(group)
    known = _channel(group, channel)
    known.trim()
    packed = _prepare(families, known)
    reduced = _exchange(packed.buffers, group)
    new_keys, identity, negated = reduced.maximum[:HEAD].tolist()
    if new_keys > 0 or identity != -negated:
        if identity != -negated:
            known.forget()
        if not _learn(packed.fit, known, group):
            return {}
        reduced = _exchange(_prepare(packed.families, known).buffers, group)
    return _without_failed(unpack(known.schema, reduced))


def buffer_device(group: ProcessGroup) -> torch.device:
    """Where this group reduces: the CPU if it has a backend for that (``gloo``, ``cpu:gloo,cuda:nccl``), else the
    current device of its accelerator."""
    pairs = dist.get_backend_config(group).split(",")
    devices = [pair.partition(":")[0] for pair in pairs]
    if "cpu" in devices or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(devices[0], torch.accelerator.current_device_index())


def _channel(group: ProcessGroup, name: str) -> Channel:
    channels = _CHANNELS.setdefault(group, {})
    if name not in channels:
        channels[name] = Channel(buffer_device(group))
    return channels[name]


def _prepare(families: Families, known: Channel) -> _Packed:
    """Pack what can be packed: a family that cannot be read counts as failed."""
    try:
        return _pack(families, known)
    except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the collective
        report_once("reduce:pack", f"could not pack an export: {tell_error(error)}")
    try:
        return _pack(_readable(families, _sendable), known)
    except Exception as error:  # noqa: BLE001 - the same
        report_once("reduce:pack again", f"could not pack anything of an export: {tell_error(error)}")
    return _pack(dict.fromkeys(families), known)


def _pack(families: Families, known: Channel) -> _Packed:
    """Both buffers, complete; with new keys only their head, once it is sure that all the rest can be made."""
    fit = known.fit(families)
    buffers = Buffers.make(*known.capacity, known.device)
    if fit.news:
        own = Plan.of(fit.mine, fit.mine, known.device)
        pack(own, families, Buffers.make(*sizes(fit.mine), known.device))
        fit.news.ordered.identity  # noqa: B018 - encodes it
    else:
        pack(fit.plan, families, buffers)
    identity = known.schema.identity
    head = torch.tensor((float(bool(fit.news)), identity, -identity), dtype=torch.float64, device="cpu")
    buffers.maximum[:HEAD] = head
    return _Packed(families, fit, buffers)


def _exchange(buffers: Buffers, group: ProcessGroup) -> Buffers:
    """Reduce both buffers; the SUM does not wait until the host has read the head of the MAX."""
    dist.all_reduce(buffers.maximum, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(buffers.total, op=dist.ReduceOp.SUM, group=group)
    return buffers.on_host()


def _learn(fit: Fit, known: Channel, group: ProcessGroup) -> bool:
    """Agree on a schema that holds everybody's keys; whether that was possible, the same on every rank."""
    union = agree(known.news(fit.mine), Ranks(group, known.device))
    if union is None:
        report_once("reduce:agree", "the ranks could not agree on the names of their metrics: this export is left out")
        known.forget()
        return False
    known.learn(known.schema.union(union), fit.mine)
    return True


def _readable(families: Families, read: Callable[[Records], Records]) -> dict[str, Records | None]:
    """The families as ``read`` gives them; None for one that it cannot read."""
    readable: dict[str, Records | None] = {}
    for name, records in families.items():
        try:
            readable[name] = None if records is None else read(records)
        except Exception as error:  # noqa: BLE001 - one family must not cost the others
            report_once(f"reduce:{name}", f"could not read the values of {name!r}: {tell_error(error)}")
            readable[name] = None
    return readable


def _sendable(records: Records) -> Records:
    """A copy whose names other ranks can be told."""
    schema = Schema.of({"": records})
    hash(schema)
    schema.ordered.identity  # noqa: B018 - encodes it
    return records.portable()


def _without_failed(families: Families) -> dict[str, Records]:
    for name, records in families.items():
        if records is None:
            report_once(
                f"family:{name}",
                f"{name!r} failed on a rank, or its ranks do not fit together: left out of the exports where it does",
            )
    return {name: records for name, records in families.items() if records is not None}
