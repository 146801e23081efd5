"""Where Megatron puts the ranks of a layout, and what each of them observes of one step. Loaded by processes of their
own, never by the test session: importing megatron.core compiles small functions.

Places are those of megatron.core's own groups, as a test holds. What a rank observes follows from its place alone: its
replica's sequences on every rank of the first stage, the routing of the tokens that it holds in the layers of its
stage, and a loss over those tokens on the last stage.
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from numpy.typing import NDArray
from support.fake_ranks import SimulatedWorld, rank_of
from torch import nn

from areal_callbacks.core.records import Records
from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.types import ReduceType
from areal_callbacks.integrations._megatron_session import make_topology
from areal_callbacks.topology import Topology

EXPERTS, LAYERS_PER_STAGE = 8, 2
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


@dataclass(frozen=True)
class RankLayout:
    """Sizes of the parallel dimensions. Experts are spread over the ranks that tensor, context and data make."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: str = ORDERS[0]
    sequence_parallel: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def fits(self) -> bool:
        """Whether Megatron takes it: experts divide the ranks, and stages are the same for both generators."""
        shards = self.tp * self.ep * self.pp
        if self.world % shards:
            return False
        experts = _places_of(self.order, tp=self.tp, cp=1, ep=self.ep, dp=self.world // shards, pp=self.pp)
        return np.array_equal(_first_stages(experts), _first_stages(self._places))

    def place(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank."""
        return {name: int(of_rank[rank]) for name, of_rank in self._places.items()}

    def topology(self, rank: int, world: Any = None) -> Topology:
        """What the integration makes of a rank's place."""
        place = self.place(rank)
        groups = SimpleNamespace(**{name: _Group(place[name], getattr(self, name)) for name in ("tp", "cp", "pp")})
        return make_topology([_stage(place["pp"] == 0, self.sequence_parallel)], groups, world=world)

    @functools.cached_property
    def _places(self) -> dict[str, NDArray[np.int64]]:
        places = _places_of(self.order, tp=self.tp, cp=self.cp, ep=1, dp=self.dp, pp=self.pp)
        return {name: places[name] for name in ("tp", "cp", "dp", "pp")}


def _places_of(order: str, **sizes: int) -> dict[str, NDArray[np.int64]]:
    """Dimension → the coordinate of every rank, of which the first dimension in the order changes fastest."""
    rest, places = np.arange(math.prod(sizes.values())), {}
    for name in order.split("-"):
        rest, places[name] = np.divmod(rest, sizes[name])
    return places


def _first_stages(places: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """The rank of the first stage in every rank's pipeline."""
    others = np.stack([places[name] for name in places if name != "pp"])
    _, first, pipeline = np.unique(others, axis=1, return_index=True, return_inverse=True)
    return first[pipeline.ravel()]


def random_layouts(count: int, largest: int, seed: int) -> Iterator[RankLayout]:
    """Different layouts that Megatron takes, of 2 up to ``largest`` ranks."""
    source = random.Random(seed)
    return _different(
        count, lambda: _random_layout(source, dp=source.choice((1, 1, 2, 2, 4, 8))), range(2, largest + 1)
    )


def random_layouts_of(count: int, world: int, seed: int) -> Iterator[RankLayout]:
    """Different layouts of exactly so many ranks; data parallelism takes what is left."""
    source = random.Random(seed)

    def layout() -> RankLayout:
        shards = _random_layout(source, dp=1)
        return replace(shards, dp=world // shards.world)

    return _different(count, layout, (world,))


def _random_layout(source: random.Random, dp: int) -> RankLayout:
    sizes = {name: source.choice((1, 1, 2, 2, 4, 8)) for name in ("tp", "cp", "ep", "pp")}
    return RankLayout(**sizes, dp=dp, order=source.choice(ORDERS), sequence_parallel=source.random() < 0.5)


def _different(count: int, draw: Callable[[], RankLayout], worlds: Container[int]) -> Iterator[RankLayout]:
    found: set[RankLayout] = set()
    while len(found) < count:
        layout = draw()
        if layout.world in worlds and layout not in found and layout.fits:
            found.add(layout)
            yield layout


class Step:
    """The data of one step: per replica some sequences, and for every token a loss and an expert in every layer."""

    def __init__(self, layout: RankLayout, seed: int) -> None:
        self.layout = layout
        source = np.random.default_rng(seed)
        self.lengths = [source.integers(1, 9, size=3) * layout.cp * layout.tp for _ in range(layout.dp)]
        tokens = [int(lengths.sum()) for lengths in self.lengths]
        self.losses = [source.integers(0, 100, size=count).astype(np.float64) for count in tokens]
        layers = layout.pp * LAYERS_PER_STAGE
        self.experts = [source.integers(0, EXPERTS, size=(layers, count)) for count in tokens]

    def expected(self) -> dict[str, Any]:
        """Tokens, counts per layer and expert, sum and number of losses: every token of every replica once."""
        experts, losses = np.concatenate(self.experts, axis=1), np.concatenate(self.losses)
        return {
            "tokens": losses.size,
            "routes": [np.bincount(layer, minlength=EXPERTS).tolist() for layer in experts],
            "loss": (losses.sum(), losses.size, losses.min(), losses.max()),
        }

    def families(self, rank: int, topology: Topology) -> dict[str, Records]:
        """What the rank brings: what it observes, where it counts."""
        place = self.layout.place(rank)
        held, losses = self._held(place), self.losses[place["dp"]]
        first = place["pp"] * LAYERS_PER_STAGE
        routes = {
            f"/{layer}": torch.from_numpy(np.bincount(self.experts[place["dp"]][layer, held], minlength=EXPERTS))
            for layer in range(first, first + LAYERS_PER_STAGE)
        }
        last = place["pp"] == self.layout.pp - 1
        mine = losses[self._held({**place, "tp": 0}, split_tensor=False)]
        row = torch.tensor([[mine.sum(), mine.size, mine.min(), mine.max()]], dtype=torch.float64)
        return {
            "throughput": Records(sums={"tokens": torch.tensor([losses.size * topology.tokens])}),
            "moe_balance": Records(sums={name: counts * topology.routes for name, counts in routes.items()}),
            "stats": Records((("loss", ReduceType.AVG_MIN_MAX),), row) if last and topology.stats else Records(),
        }

    def _held(self, place: dict[str, int], *, split_tensor: bool | None = None) -> NDArray[np.int64]:
        """The tokens that pass through a rank: its part of the context, of which sequence parallelism takes a part."""
        split = self.layout.sequence_parallel if split_tensor is None else split_tensor
        tokens = np.arange(len(self.losses[place["dp"]]))
        part = np.array_split(tokens, self.layout.cp)[place["cp"]]
        return np.array_split(part, self.layout.tp)[place["tp"]] if split else part


def reduced(layout: RankLayout, seed: int) -> list[dict[str, Any]]:
    """What every simulated rank is told about a step, over groups that really reduce."""
    step, world = Step(layout, seed), SimulatedWorld(layout.world)

    def job(group: Any) -> dict[str, Any]:
        topology = layout.topology(group.rank, group)
        told = reduce(step.families(group.rank, topology), topology.world, "layouts")
        routes = told["moe_balance"].sums
        return {
            "tokens": int(told["throughput"].sums["tokens"]),
            "routes": [routes[f"/{layer}"].tolist() for layer in range(len(routes))],
            "loss": tuple(told["stats"].rows[0].tolist()),
        }

    return world.run(job)


def reduced_and_expected(_group: Any, count: int, largest: int, seed: int) -> list[tuple[Any, list[Any], Any]]:
    """Per random layout: its sizes, the different things that its ranks were told, and the truth."""
    outcomes = []
    for layout in random_layouts(count, largest, seed):
        told = reduced(layout, seed)
        different = [first for place, first in enumerate(told) if first not in told[:place]]
        sizes = {field.name: getattr(layout, field.name) for field in fields(layout)}
        outcomes.append((sizes, different, Step(layout, seed).expected()))
    return outcomes


def told_per_token(layout: RankLayout) -> tuple[float, float, float]:
    """How often the world tells each token, each routed token of a layer, and each loss, by the ranks' places alone.

    Exact where every replica and stage is told the same number of times; NaN otherwise. Of the ranks with one place
    beside that in data parallelism, which a topology does not depend on, one makes the topology.
    """
    places = layout._places
    alike = np.stack([places["tp"], places["cp"], places["pp"]], axis=1)
    _, firsts, kind = np.unique(alike, axis=0, return_index=True, return_inverse=True)
    topologies = [layout.topology(int(rank)) for rank in firsts]
    told = np.array([(each.tokens, each.routes, each.stats) for each in topologies], dtype=np.float64)[kind.ravel()]
    shares = 1, layout.cp * (layout.tp if layout.sequence_parallel else 1), layout.cp
    tokens, routes, losses = sums = np.zeros((3, layout.dp, layout.pp))
    for each, column, share in zip(sums, told.T, shares):
        np.add.at(each, (places["dp"], places["pp"]), column / share)
    return _only(tokens.sum(axis=1)), _only(routes), _only(losses[:, -1])


def told_by_layouts(_group: Any, count: int, world: int, seed: int) -> dict[str, tuple[float, ...]]:
    """Random layouts of so many ranks → :func:`told_per_token` of each."""
    return {repr(layout): told_per_token(layout) for layout in random_layouts_of(count, world, seed)}


def _only(values: NDArray[np.float64]) -> float:
    return float(values.flat[0]) if np.allclose(values, values.flat[0], rtol=1e-12) else float("nan")


def places_in_groups(_group: Any, count: int, largest: int, seed: int) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Per random layout and rank: its place here, and in the process groups that megatron.core makes for it."""
    dist.destroy_process_group()
    layouts = random_layouts(count, largest, seed)
    places = [
        (layout.place(rank), _ranks_in_groups(layout, rank)) for layout in layouts for rank in range(layout.world)
    ]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return places


def _ranks_in_groups(layout: RankLayout, rank: int) -> dict[str, int]:
    with rank_of(rank, layout.world):
        parallel_state.initialize_model_parallel(
            layout.tp,
            layout.pp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            order=layout.order,
            create_gloo_process_groups=False,
        )
        names = ["tp", "cp", "dp", "pp"]
        groups = ProcessGroupCollection.use_mpu_process_groups(names)
        ranks = {name: getattr(groups, name).rank() for name in names}
        parallel_state.destroy_model_parallel()
        return ranks


class _Group:
    """A process group as far as a topology asks for it."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@functools.cache
def _stage(pre_process: bool, sequence_parallel: bool) -> nn.Module:
    """A model chunk as far as a topology asks for it."""
    chunk = nn.Module()
    chunk.pre_process, chunk.config = pre_process, SimpleNamespace(sequence_parallel=sequence_parallel)
    return chunk
