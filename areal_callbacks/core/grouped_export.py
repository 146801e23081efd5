"""Keys that are reduced over a process group of their own, beside those that share the group of the export.

An export first reduces the shared keys. The same two collectives tell every rank which groups the others brought keys
for, so that all members of such a group then reduce it together, also one that has nothing for it: two collectives for
each group, in an order that every rank derives alike. A group that reaches beyond the group of the export is known to
the ranks there only if one of theirs brings it too, or if ``key_sync_group`` holds them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from areal_callbacks.core.grouped import own_of, share
from areal_callbacks.core.groups import Group, group_named, name_of
from areal_callbacks.core.packing import Families
from areal_callbacks.core.records import Records, pool
from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.summary import empty_rows
from areal_callbacks.core.types import COUNT_SUFFIX

STATS = "stats"
"""The family of what trackers recorded."""
OWN = "keys with a group of their own"
"""The family that tells which those are: what all ranks brought, whatever the group, and the groups' names."""


def reduce_grouped(families: Families, group: Group, channel: str, known: Iterable[str] = ()) -> dict[str, Records]:
    """Reduce families over a group, and keys with a group of their own over that. Collective, like :func:`reduce`.

    Args:
        families: what this rank brings. Only that of the trackers may have keys with a group of their own.
        group: that of the export.
        channel: names the caller.
        known: names of groups that more ranks than those of ``group`` agreed to reduce.

    Returns:
        What :func:`reduce` returns, this rank's groups pooled into the family of the trackers, and :data:`OWN` where
        any rank has keys with a group of their own.
    """
    stats = families.get(STATS)
    if stats is not None:
        families = {**families, STATS: share(stats, group)}
    own = own_of(families.get(STATS))
    reduced = reduce({**families, **_announcement(own)}, group, channel)
    for each in _order_agreed(own, {*known, *_names_in(reduced)}):
        part = reduce({STATS: own[each]} if each in own else {}, each, f"{channel}: own group")
        reduced[STATS] = pool([reduced.get(STATS, Records()), *part.values()])
    return reduced


def export_grouped(
    records: Records, reduce_group: Group, key_sync_group: Group, channel: str, key: str | None = None
) -> dict[str, float]:
    """Reduce the records of trackers to plain numbers. Collective over both groups, which ``export_groups`` checked.

    Args:
        records: what this rank brings.
        reduce_group: the ranks to reduce over.
        key_sync_group: the ranks that export the same keys, at least those of ``reduce_group``; None for as they come.
        channel: names the caller.
        key: the only key that was asked for, which nobody may have recorded.
    """
    records = share(records, reduce_group)
    agreed = _agreement(records, reduce_group, key_sync_group, channel)
    reduced = reduce_grouped({STATS: records}, reduce_group, channel, _names_in(agreed))
    stats = reduced.get(STATS, Records())
    everywhere = stats if key_sync_group is None else pool(_select(agreed or reduced))
    if key is not None and not everywhere.keys and not everywhere.sums:
        return {key: math.nan, key + COUNT_SUFFIX: 0.0}
    return stats.metrics() if everywhere is stats else _fill(stats.metrics(), everywhere)


def _agreement(records: Records, group: Group, key_sync_group: Group, channel: str) -> dict[str, Records]:
    """What ``key_sync_group`` brings, where its ranks are not those of the export anyway."""
    if key_sync_group is None or key_sync_group is group:
        return {}
    return reduce({STATS: records, **_announcement(own_of(records))}, key_sync_group, f"{channel}: keys")


def _select(reduced: Mapping[str, Records]) -> Iterable[Records]:
    return (part for name, part in reduced.items() if name in (STATS, OWN))


def _fill(metrics: Mapping[str, float], everywhere: Records) -> dict[str, float]:
    """The metrics under the names that the records of all ranks have: nothing adds up to 0, and has no average."""
    nothing = Records(everywhere.keys, empty_rows(len(everywhere.keys))).metrics()
    absent = {name: 0.0 if name.endswith(COUNT_SUFFIX) else math.nan for name in everywhere.metrics()}
    return {name: metrics.get(name, nothing.get(name, value)) for name, value in absent.items()}


def _announcement(own: Mapping[Group, Records]) -> dict[str, Records]:
    """A family that tells the other ranks which groups this one has keys for, and which keys."""
    if not own:
        return {}
    keys = pool(own.values())
    names = {name_of(group): torch.ones(1, device="cpu") for group in own if group is not None}
    return {OWN: Records(keys.keys, keys.rows, maxima=names)}


def _names_in(reduced: Mapping[str, Records]) -> Iterable[str]:
    return reduced[OWN].maxima if OWN in reduced else ()


def _order_agreed(own: Iterable[Group], names: Iterable[str]) -> list[Group]:
    """The groups that this rank reduces: those agreed on, in the order of their names, then this process alone.

    A group that this rank brought but the agreement does not name is one that the others would not reduce either.
    """
    mine = {name_of(group): group for group in own if group is not None}
    groups = (mine.get(name) or group_named(name) for name in sorted(names))
    return [*(group for group in groups if group is not None), *([None] if None in own else [])]
