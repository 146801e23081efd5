"""Who contributes what to a reduction over the world, and who writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch.distributed as dist

from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_DATA = (
    "dp",
    "ddp",
    "data",
    "data_parallel",
    "batch",
    "dp_replicate",
    "dp_shard",
    "fsdp",
    "hsdp",
    "replicate",
    "shard",
)
_EXPERTS = ("ep", "expert", "expert_parallel", "dp_shard_mod_ep", "dp_shard_in_ep", "efsdp", "edp")
_CONTEXT = ("cp", "context", "context_parallel", "sp", "sequence_parallel")
_TENSOR = ("tp", "tensor", "tensor_parallel", "model")
_PIPELINE = ("pp", "pipe", "pipeline", "pipeline_parallel")


@dataclass(frozen=True)
class Topology:
    """This rank's place among the training ranks.

    Every export reduces over all training ranks, however they are arranged: a rank whose data repeats another's
    contributes zeros.

    Attributes:
        world: the group of every training rank; None for one process.
        tokens: this rank's sequences count (not on ranks that share a batch with another: tensor or context parallel).
        routes: this rank's routed assignments count (context-parallel ranks route different tokens: they all count).
        stats: what this rank recorded through a tracker counts.
        writer_rank: the rank in ``world`` that writes files and trackers; -1 for none.
        is_left_alone: the other ranks are not measured: nothing is reduced over any group.
    """

    world: ProcessGroup | None = None
    tokens: bool = True
    routes: bool = True
    stats: bool = True
    writer_rank: int = 0
    is_left_alone: bool = False

    @classmethod
    def data_parallel(cls, *, writer_rank: int = 0) -> Topology:
        """Every process of the default group has its own data; one process if there is no default group."""
        return cls(world=default_world(), writer_rank=writer_rank)

    @classmethod
    def of_ranks(
        cls,
        *,
        tensor_rank: int = 0,
        context_rank: int = 0,
        pipeline_rank: int = 0,
        sequence_parallel: bool = False,
        writer_rank: int = 0,
    ) -> Topology:
        """The place of a rank of the default group, by its ranks in the groups that share one batch.

        Ranks of one tensor-parallel group repeat each other. Those of a context-parallel group share sequences, but
        route different tokens of them. Of a pipeline the first stage is given the tokens, and every stage routes in
        layers of its own.

        Args:
            tensor_rank: in its tensor-parallel group.
            context_rank: in its context-parallel group.
            pipeline_rank: number of its stage.
            sequence_parallel: tensor-parallel ranks route different tokens, each its part of the sequence.
            writer_rank: the rank within the default group that writes.
        """
        return cls(
            world=default_world(),
            tokens=tensor_rank == context_rank == pipeline_rank == 0,
            routes=sequence_parallel or tensor_rank == 0,
            stats=tensor_rank == 0,
            writer_rank=writer_rank,
        )

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, *, sequence_parallel: bool = False, writer_rank: int = 0) -> Topology:
        """This rank's place in a device mesh, by the names of its dimensions.

        ===========================================================  ======  =====================  =====
        Dimension                                                    tokens  routes                 stats
        ===========================================================  ======  =====================  =====
        dp, data_parallel, dp_replicate, dp_shard, fsdp, …           all     all                    all
        ep, expert_parallel, efsdp, …                                all     all                    all
        cp, context_parallel, sp, …                                  first   all                    all
        tp, tensor_parallel, …                                       first   first (all with        first
                                                                             ``sequence_parallel``)
        pp, pipeline_parallel, …                                     first   all                    all
        ===========================================================  ======  =====================  =====

        "First" means that only the rank with coordinate 0 in this dimension contributes; see :meth:`of_ranks` for the
        reasons. A mesh without names must have one dimension, of data.

        Args:
            mesh: of all training ranks. A mesh of fewer ranks than the default group gets a group of its own, which its
                ranks make together here.
            sequence_parallel: tensor-parallel ranks route different tokens, each its part of the sequence.
            writer_rank: the rank within the mesh's group that writes.

        Raises:
            ValueError: this rank is not in the mesh, or a dimension has an unknown name.
        """
        if mesh.get_coordinate() is None:
            raise ValueError(f"mesh: rank {dist.get_rank()} is not in {mesh}")
        topology = cls.of_ranks(
            tensor_rank=_coordinate(mesh, _TENSOR),
            context_rank=_coordinate(mesh, _CONTEXT),
            pipeline_rank=_coordinate(mesh, _PIPELINE),
            sequence_parallel=sequence_parallel,
            writer_rank=writer_rank,
        )
        if _size(mesh, _CONTEXT) > 1:
            _ask_for_whole_lengths()
        return replace(topology, world=_world_of(mesh))

    def left_alone(self, *, writes: bool) -> Topology:
        """The same rank where not all are measured."""
        return replace(self, world=None, is_left_alone=True, writer_rank=0 if writes else -1)

    @property
    def is_one_process(self) -> bool:
        """No other process trains."""
        return self.world is None and not self.is_left_alone

    @property
    def size(self) -> int:
        """Number of training ranks."""
        return 1 if self.world is None else dist.get_world_size(self.world)

    @property
    def rank(self) -> int:
        """This rank in ``world``."""
        return 0 if self.world is None else dist.get_rank(self.world)

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes."""
        return self.writer_rank >= 0 if self.world is None else self.rank == self.writer_rank


def default_world() -> ProcessGroup | None:
    """The default process group, or None if this process is the only one."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None


def _ask_for_whole_lengths() -> None:
    report_once(
        "topology:context",
        "context parallelism shows a forward only a part of each sequence: call count_sequences(lengths) with "
        "the whole lengths before the batch is sharded",
    )


def _coordinate(mesh: DeviceMesh, names: tuple[str, ...]) -> int:
    """Zero only for the first rank in all the dimensions with these names."""
    return sum(mesh.get_local_rank(index) for index, name in enumerate(_dimensions(mesh)) if name in names)


def _size(mesh: DeviceMesh, names: tuple[str, ...]) -> int:
    return max((mesh.size(index) for index, name in enumerate(_dimensions(mesh)) if name in names), default=1)


def _dimensions(mesh: DeviceMesh) -> tuple[str, ...]:
    known = _DATA + _EXPERTS + _CONTEXT + _TENSOR + _PIPELINE
    names = mesh.mesh_dim_names or (("dp",) if mesh.ndim == 1 else ())
    if not names:
        raise ValueError(f"mesh: the {mesh.ndim} dimensions have no names; choose from {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(f"mesh: what does dimension {name!r} mean? choose from {', '.join(known)}")
    return names


def _world_of(mesh: DeviceMesh) -> ProcessGroup | None:
    if mesh.size() == dist.get_world_size():
        return default_world()
    if mesh.size() == 1:
        return None
    if mesh.ndim == 1:
        return mesh.get_group()
    group: ProcessGroup = dist.new_group(mesh.mesh.flatten().tolist(), use_local_synchronization=True)
    return group
