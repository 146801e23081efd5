"""Which modules are routers, and where they stand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.routers import DemoTopKRouter, tree
from support.toy_moe import Block, ToyMoE
from torch import nn

from areal_callbacks.monitors.moe_balance import layer_names
from areal_callbacks.monitors.moe_balance.routers import find_routers, find_unrecognised_routers


def places(model: nn.Module | list[nn.Module]) -> dict[str, tuple[str, int]]:
    return {router.name: (router.stack, router.layer) for router in find_routers(model)}


# -- names


@pytest.mark.parametrize(
    ("name", "stack", "layer"),
    [
        ("model.layers.3.mlp.gate", "", 3),
        ("module.model.layers.3.mlp.gate", "", 3),
        ("_orig_mod.module.model.layers.3._checkpoint_wrapped_module.mlp.gate", "", 3),
        ("_fsdp_wrapped_module.model.layers.3._fsdp_wrapped_module._orig_mod.mlp.gate", "", 3),
        ("base_model.model.model.layers.3.mlp.gate.modules_to_save.default", "", 3),
        ("base_model.model.model.layers.3.mlp.gate.original_module", "", 3),
        ("base_model.model.model.layers.3.mlp.gate.base_layer", "", 3),
        ("decoder.block.11.layer.2.mlp.router", "", 11),
        ("encoder.block.1.layer.1.mlp.router", "encoder", 1),
        ("transformer.blocks.5.ffn.experts", "", 5),
        ("transformer.h.5.moe.router", "", 5),
        ("model.language_model.layers.2.mlp.gate", "", 2),
        ("model.vision_tower.encoder.layers.2.mlp.gate", "vision", 2),
        ("visual.blocks.2.mlp.gate", "vision", 2),
        ("thinker.model.layers.7.mlp.gate", "", 7),
        ("talker.model.layers.7.mlp.gate", "talker", 7),
        ("model.layers.4.mlp.text_moe.gate", "", 4),
        ("model.layers.4.mlp.vision_moe.gate", "vision", 4),
        ("2.router", "", 2),
        ("router", "", 0),
    ],
)
def test_layers_and_stacks_by_name(name: str, stack: str, layer: int) -> None:
    place = layer_names.find_place(name, has_decoder=True)
    assert place is not None
    assert (place.stack, place.layer) == (stack, layer)


@pytest.mark.parametrize(
    "name",
    [
        "mtp.layers.0.mlp.router",
        "model.mtp_layers.0.mlp.gate",
        "model.layers.3.self_attention.experts.router",
        "model.layers.3.self_attn.router",
    ],
)
def test_auxiliary_layers_and_mixtures_of_attention_have_no_place(name: str) -> None:
    assert layer_names.find_place(name, has_decoder=False) is None


def test_an_encoder_alone_is_the_main_stack() -> None:
    assert places(tree(["encoder.layers.0.router"])) == {"encoder.layers.0.router": ("", 0)}
    both = tree(["encoder.layers.0.router", "decoder.layers.0.router"])
    assert places(both) == {"encoder.layers.0.router": ("encoder", 0), "decoder.layers.0.router": ("", 0)}


def test_stacks_that_names_do_not_tell_are_told_apart() -> None:
    model = tree(["left.layers.0.router", "left.layers.1.router", "right.layers.0.router"])
    assert places(model) == {
        "left.layers.0.router": ("", 0),
        "left.layers.1.router": ("", 1),
        "right.layers.0.router": ("right", 0),
    }


def test_layers_of_one_stack_may_name_their_routers_differently() -> None:
    model = tree(["layers.0.mlp.gate", "layers.1.mixer.router"])
    assert set(places(model).values()) == {("", 0), ("", 1)}


def test_copies_that_a_wrapper_keeps_share_a_layer() -> None:
    model = tree(["layers.0.gate.original_module", "layers.0.gate.modules_to_save.default"])
    assert list(places(model).values()) == [("", 0), ("", 0)]


def test_a_module_that_two_parts_hold_is_found_once() -> None:
    model = ToyMoE()
    assert len(find_routers([model, model.layers])) == len(model.layers)


def test_parts_with_equal_layers_are_told_apart() -> None:
    assert [router.stack for router in find_routers([tree(["layers.0.router"]), tree(["layers.0.router"])])] == [
        "",
        "part_1",
    ]


def test_parts_of_a_pipeline_keep_the_numbers_of_the_whole_model() -> None:
    parts = [ToyMoE(kept=range(0, 1)), ToyMoE(kept=range(3, 4))]
    assert [(router.stack, router.layer) for router in find_routers(parts)] == [("", 0), ("", 3)]


def test_a_router_may_know_its_layer_better_than_its_name() -> None:
    model = tree(
        {
            "decoder.layers.0.mlp.router": DemoTopKRouter(layer_number=13),  # Megatron counts from 1
            "decoder.layers.1.mlp.router": DemoTopKRouter(layer_number=1, is_mtp_layer=True),
        }
    )
    assert places(model) == {"decoder.layers.0.mlp.router": ("", 12)}


# -- recognition


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
    assert places(model) == {"router": ("", 0)}
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
