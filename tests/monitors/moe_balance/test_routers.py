"""Which modules are routers, and how many experts they choose from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.routers import DemoTopKRouter, find_places, tree
from support.toy_moe import Block, ToyMoE
from torch import nn

from areal_callbacks.monitors.moe_balance.routers import find_routers, find_unrecognised_routers


def test_a_module_that_two_parts_hold_is_found_once() -> None:
    model = ToyMoE()
    assert len(find_routers([model, model.layers])) == len(model.layers)


def test_a_router_may_know_its_layer_better_than_its_name() -> None:
    model = tree(
        {
            "decoder.layers.0.mlp.router": DemoTopKRouter(layer_number=13),  # Megatron counts from 1
            "decoder.layers.1.mlp.router": DemoTopKRouter(layer_number=1, is_mtp_layer=True),
        }
    )
    assert find_places(model) == {"decoder.layers.0.mlp.router": ("", 12)}


@pytest.mark.parametrize(
    ("attributes", "experts"),
    [
        ({}, 4),
        ({"n_routed_experts": 6}, 6),  # two experts without weights
        ({"num_experts": None, "config": SimpleNamespace(num_experts=5)}, 5),
    ],
)
def test_the_number_of_experts(attributes: dict[str, Any], experts: int) -> None:
    (router,) = find_routers(tree({"layers.0.router": DemoTopKRouter(**attributes)}))
    assert router.experts == experts


def test_top_k_may_stand_in_the_block_or_in_the_class_name() -> None:
    class DemoTop1Router(DemoTopKRouter):
        pass

    named = DemoTop1Router(top_k=None)  # type: ignore[arg-type]
    (router,) = find_routers(tree({"layers.0.router": named}))
    assert router.top_k == 1


def test_a_subclass_is_recognised() -> None:
    class Sharded(DemoTopKRouter):  # what fully_shard makes of a class
        pass

    assert len(find_routers(tree({"layers.0.gate": Sharded()}))) == 1


def test_what_looks_like_a_router_and_is_none() -> None:
    class DensityRouter(nn.Module):
        pass

    class ExpertlessTopKRouter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_experts = 4

    model = tree({"layers.0.density": DensityRouter(), "layers.0.moe.router": ExpertlessTopKRouter()})
    assert find_routers(model) == []
    assert find_unrecognised_routers(model) == ["ExpertlessTopKRouter"]


def test_a_router_beside_counted_experts_is_not_missing() -> None:
    class DbrxRouter(DemoTopKRouter):
        pass

    class DbrxExperts(DemoTopKRouter):
        pass

    model = tree({"blocks.0.ffn.router": DbrxRouter(), "blocks.0.ffn.experts": DbrxExperts()})
    assert [router.contract.name for router in find_routers(model)] == ["experts' input"]
    assert find_unrecognised_routers(model) == []
    apart = tree({"blocks.1.ffn.router": DbrxRouter(), "blocks.10.ffn.experts": DbrxExperts(), "router": DbrxRouter()})
    assert find_unrecognised_routers(apart) == ["DbrxRouter"]


def test_a_router_that_is_a_child_of_the_root_is_not_missing() -> None:
    model = tree(["router"])
    assert find_places(model) == {"router": ("", 0)}
    assert find_unrecognised_routers(model) == []


def test_a_buffer_of_running_counts_counts_only_without_a_router() -> None:
    block = nn.Module()
    block.register_buffer("routing_counts", torch.zeros(6))
    (found,) = find_routers(tree({"layers.2.moe": block}))
    assert (found.contract.name, found.layer, found.experts, found.top_k) == ("running counts", 2, 6, None)

    with_router = Block()
    with_router.register_buffer("routing_counts", torch.zeros(6))
    (found,) = find_routers(tree({"layers.2.moe": with_router}))
    assert found.contract.name == "index"
