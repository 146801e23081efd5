"""Who contributes what to a reduction over the world, and who writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Topology:
    """This rank's place among the training ranks.

    Every export reduces over all training ranks, so that nobody needs to know how they are arranged: a rank whose data
    repeats another's simply contributes nothing.

    Attributes:
        world: the group of every training rank; None for one process.
        tokens: this rank's sequences count (not on ranks that share a batch with another: tensor or context parallel).
        routes: this rank's routed assignments count (context-parallel ranks route different tokens: they all count).
        stats: what this rank recorded through a tracker counts.
        writer_rank: the rank in ``world`` that writes files and trackers.
    """

    world: ProcessGroup | None = None
    tokens: bool = True
    routes: bool = True
    stats: bool = True
    writer_rank: int = 0

    @classmethod
    def data_parallel(cls, *, writer_rank: int = 0) -> Topology:
        """Every process of the default group has its own data; one process if there is no default group."""
        return cls(world=default_world(), writer_rank=writer_rank)

    @property
    def size(self) -> int:
        """Number of training ranks."""
        return 1 if self.world is None else dist.get_world_size(self.world)

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes."""
        return self.world is None or dist.get_rank(self.world) == self.writer_rank


def default_world() -> ProcessGroup | None:
    """The default process group, or None where there is nobody to reduce with."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None
