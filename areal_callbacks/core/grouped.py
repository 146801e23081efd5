"""Records of which some keys are reduced over a process group of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from areal_callbacks.core.groups import Group
from areal_callbacks.core.records import Records, pool


@dataclass
class GroupedRecords(Records):
    """Records of which some are reduced over another group than the rest.

    Attributes:
        own: group → what is reduced over it; all else is reduced over the group of the export.
    """

    own: dict[Group, Records] = field(default_factory=dict)


def split(records: Records, groups: Mapping[str, Group]) -> Records:
    """The records, those of the keys in ``groups`` apart."""
    if not groups:
        return records
    own: dict[Group, list[int]] = {}
    shared: list[int] = []
    for index, (key, _) in enumerate(records.keys):
        (own.setdefault(groups[key], []) if key in groups else shared).append(index)
    if not own:
        return records
    rest, parts = _rows(records, shared), {group: _rows(records, places) for group, places in own.items()}
    return GroupedRecords(rest.keys, rest.rows, records.sums, records.maxima, parts)


def pool_grouped(sources: Iterable[Records]) -> Records:
    """The records of several trackers as one, group by group."""
    sources = list(sources)
    shared, own = pool(sources), _by_group(sources)
    if not own:
        return shared
    pooled = {group: pool(parts) for group, parts in own.items()}
    return GroupedRecords(shared.keys, shared.rows, shared.sums, own=pooled)


def share(records: Records, group: Group) -> Records:
    """With the keys whose own group is that of the export among the rest."""
    own = own_of(records)
    if group not in own:
        return records
    shared = pool([records, own.pop(group)])
    return GroupedRecords(shared.keys, shared.rows, shared.sums, records.maxima, own)


def only_own(records: Records) -> Records:
    """What is not reduced over the group of the export."""
    return GroupedRecords(own=own_of(records))


def pool_own(records: Records) -> Records:
    """As if no key had a group of its own."""
    return pool([records, *own_of(records).values()])


def own_of(records: Records | None) -> dict[Group, Records]:
    """What is reduced over groups of its own."""
    return dict(records.own) if isinstance(records, GroupedRecords) else {}


def _by_group(sources: Iterable[Records]) -> dict[Group, list[Records]]:
    groups: dict[Group, list[Records]] = {}
    for source in sources:
        for group, part in own_of(source).items():
            groups.setdefault(group, []).append(part)
    return groups


def _rows(records: Records, places: list[int]) -> Records:
    index = torch.tensor(places, dtype=torch.long, device=records.rows.device)
    return Records(tuple(records.keys[place] for place in places), records.rows[index])
