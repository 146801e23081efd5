"""The place of a rank in a device mesh."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from support.distributed import Ranks
from support.fake_ranks import rank_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from areal_callbacks.topology import Topology


def places(shape: tuple[int, ...], names: tuple[str, ...], **options: bool) -> list[Topology]:
    """The topology of every rank of a mesh, in rank order."""
    world = int(torch.tensor(shape).prod())
    found = []
    for rank in range(world):
        with rank_of(rank, world):
            found.append(Topology.from_mesh(init_device_mesh("cpu", shape, mesh_dim_names=names), **options))
    return found


def test_every_dimension_at_once() -> None:
    shape, names = (2, 2, 2, 2), ("pp", "dp_shard", "cp", "tp")
    for rank, topology in enumerate(places(shape, names)):
        pp, _, cp, tp = rank >> 3 & 1, rank >> 2 & 1, rank >> 1 & 1, rank & 1
        assert topology.tokens == (pp == 0 and cp == 0 and tp == 0)
        assert topology.routes == (tp == 0)
        assert topology.stats == (tp == 0)


@pytest.mark.parametrize(
    ("names", "tokens", "routes"),
    [
        (("dp",), 4, 4),
        (("data_parallel",), 4, 4),
        (("ep",), 4, 4),
        (("cp",), 1, 4),
        (("tensor_parallel",), 1, 1),
        (("pp",), 1, 4),
    ],
)
def test_how_many_ranks_of_a_dimension_contribute(names: tuple[str, ...], tokens: int, routes: int) -> None:
    topologies = places((4,), names)
    assert sum(topology.tokens for topology in topologies) == tokens
    assert sum(topology.routes for topology in topologies) == routes


@pytest.mark.parametrize(
    ("ranks", "tokens", "routes", "stats"),
    [
        ({}, True, True, True),
        ({"tensor_rank": 1}, False, False, False),
        ({"tensor_rank": 1, "sequence_parallel": True}, False, True, False),
        ({"context_rank": 2}, False, True, True),
        ({"pipeline_rank": 1}, False, True, True),
        ({"tensor_rank": 3, "context_rank": 1, "pipeline_rank": 1}, False, False, False),
    ],
)
def test_a_host_that_tells_its_ranks_one_by_one(ranks: dict[str, int], tokens: bool, routes: bool, stats: bool) -> None:
    assert Topology.of_ranks(**ranks) == Topology(tokens=tokens, routes=routes, stats=stats)
    with rank_of(1, 2):
        topology = Topology.of_ranks(**ranks, writer_rank=1)
        assert (topology.size, topology.is_writer) == (2, True)


def test_hybrid_sharding_and_experts_repeat_nothing() -> None:
    for topology in places((2, 2, 2), ("dp_replicate", "dp_shard_mod_ep", "dp_shard_in_ep")):
        assert topology.tokens
        assert topology.routes
        assert topology.stats


def test_sequence_parallel_ranks_route_different_tokens() -> None:
    assert [topology.routes for topology in places((2,), ("tp",), sequence_parallel=True)] == [True, True]


def test_the_writer_is_a_rank_of_the_mesh() -> None:
    with rank_of(1, 2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        assert not Topology.from_mesh(mesh).is_writer
        assert Topology.from_mesh(mesh, writer_rank=1).is_writer
        assert Topology.from_mesh(mesh).size == 2


def test_a_mesh_without_names_is_of_data_if_it_has_one_dimension() -> None:
    with rank_of(0, 4):
        assert Topology.from_mesh(DeviceMesh("cpu", [0, 1, 2, 3])).tokens
        with pytest.raises(ValueError, match="the 2 dimensions have no names; choose from dp, "):
            Topology.from_mesh(DeviceMesh("cpu", [[0, 1], [2, 3]]))


def test_an_unknown_dimension_is_an_error() -> None:
    with (
        rank_of(0, 2),
        pytest.raises(ValueError, match=r"what does dimension 'rows' mean\? choose from dp, .*, tp, .*, pp, "),
    ):
        Topology.from_mesh(init_device_mesh("cpu", (2,), mesh_dim_names=("rows",)))


def test_a_rank_outside_the_mesh_is_an_error() -> None:
    with rank_of(3, 4), pytest.raises(ValueError, match="rank 3 is not in"):
        Topology.from_mesh(DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))


def test_context_parallelism_asks_for_whole_lengths(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "areal_callbacks"):
        places((1, 2), ("cp", "dp"))
        assert not caplog.records
        places((2, 1), ("cp", "dp"))
    assert [record.message for record in caplog.records if "count_sequences" in record.message] != []
    assert len(caplog.records) == 1


def own_group_of_a_smaller_mesh(group: dist.ProcessGroup) -> tuple[int | None, int | None]:  # noqa: ARG001
    rank = dist.get_rank()
    alone = Topology.from_mesh(DeviceMesh("cpu", [rank], mesh_dim_names=("dp",)))
    both = Topology.from_mesh(DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "tp")))
    return alone.size, both.size


@pytest.mark.slow
def test_a_mesh_of_fewer_ranks_reduces_over_them_alone(two_ranks: Ranks) -> None:
    assert two_ranks.run(own_group_of_a_smaller_mesh) == [(1, 2), (1, 2)]
