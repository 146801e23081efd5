"""Where a router stands: its stack and layer, from the names of modules."""

from __future__ import annotations

import pytest
from support.routers import find_places, tree
from support.toy_moe import ToyMoE

from areal_callbacks.monitors.moe_balance import layer_names
from areal_callbacks.monitors.moe_balance.routers import find_routers


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
    assert find_places(tree(["encoder.layers.0.router"])) == {"encoder.layers.0.router": ("", 0)}
    both = tree(["encoder.layers.0.router", "decoder.layers.0.router"])
    assert find_places(both) == {"encoder.layers.0.router": ("encoder", 0), "decoder.layers.0.router": ("", 0)}


def test_stacks_that_names_do_not_tell_are_told_apart() -> None:
    model = tree(["left.layers.0.router", "left.layers.1.router", "right.layers.0.router"])
    assert find_places(model) == {
        "left.layers.0.router": ("", 0),
        "left.layers.1.router": ("", 1),
        "right.layers.0.router": ("right", 0),
    }


def test_layers_of_one_stack_may_name_their_routers_differently() -> None:
    model = tree(["layers.0.mlp.gate", "layers.1.mixer.router"])
    assert set(find_places(model).values()) == {("", 0), ("", 1)}


def test_copies_that_a_wrapper_keeps_share_a_layer() -> None:
    model = tree(["layers.0.gate.original_module", "layers.0.gate.modules_to_save.default"])
    assert list(find_places(model).values()) == [("", 0), ("", 0)]


def test_parts_with_equal_layers_are_told_apart() -> None:
    assert [router.stack for router in find_routers([tree(["layers.0.router"]), tree(["layers.0.router"])])] == [
        "",
        "part_1",
    ]


def test_parts_of_a_pipeline_keep_the_numbers_of_the_whole_model() -> None:
    parts = [ToyMoE(kept=range(0, 1)), ToyMoE(kept=range(3, 4))]
    assert [(router.stack, router.layer) for router in find_routers(parts)] == [("", 0), ("", 3)]
