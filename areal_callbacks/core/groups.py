"""Process groups as this process sees them, under names that all their members share."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Group: TypeAlias = "ProcessGroup | None"
"""The ranks to reduce over; None for this process alone."""
OwnGroup: TypeAlias = Any
"""A process group or None, beside ``**metrics``: a type checker would find anything narrower in conflict with those."""


def as_group(group: object, name: str = "reduce_group") -> Group:
    """A group that this process belongs to; None, for this process alone, where ``new_group`` left it out.

    Raises:
        ValueError: not a process group.
    """
    if group is None:
        return None
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    raise ValueError(f"{name} must be a process group or None, got {group!r}")


def export_groups(reduce_group: object, key_sync_group: object) -> tuple[Group, Group]:
    """The groups of an export, checked before anything is taken out of a tracker.

    Raises:
        ValueError: not process groups, or the second lacks a rank of the first.
    """
    group, sync = as_group(reduce_group), as_group(key_sync_group, "key_sync_group")
    missing = [] if sync in (None, group) else sorted(set(ranks_of(group)) - set(ranks_of(sync)))
    if missing:
        raise ValueError(f"key_sync_group must hold every rank of reduce_group; ranks {missing} are missing")
    return group, sync


def ranks_of(group: Group) -> list[int]:
    """The members, as ranks of the default group."""
    ranks: list[int] = [dist.get_rank()] if group is None else dist.get_process_group_ranks(group)
    return ranks


def name_of(group: ProcessGroup) -> str:
    """A name for this group alone: torch gives the parts of one split the same name, so the ranks belong to it."""
    ranks = hashlib.blake2b(repr(ranks_of(group)).encode(), digest_size=8).hexdigest()
    return f"{ranks}/{group.group_name}"


def group_named(name: str) -> Group:
    """The group of that name, if this process belongs to it."""
    c10d: Any = dist.distributed_c10d
    try:
        group: ProcessGroup = c10d._resolve_process_group(name.partition("/")[2])
    except (RuntimeError, LookupError, ValueError):
        return None
    return group if name_of(group) == name else None
