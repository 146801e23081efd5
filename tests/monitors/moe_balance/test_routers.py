"""Which modules are routers, where they stand, and how they tell what they chose."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fake_ranks import rank_of
from support.toy_moe import Block, ToyMoE
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from areal_callbacks.monitors.moe_balance import layer_names
from areal_callbacks.monitors.moe_balance.contracts import CONTRACTS, expert_indices, register_router_contract
from areal_callbacks.monitors.moe_balance.routers import find_routers, unrecognised_routers


class DemoTopKRouter(nn.Module):
    """Only its attributes matter here."""

    def __init__(self, experts: int = 4, top_k: int = 2, **more: Any) -> None:
        super().__init__()
        self.num_experts, self.top_k = experts, top_k
        for name, value in more.items():
            setattr(self, name, value)


def tree(names: dict[str, nn.Module] | list[str]) -> nn.Module:
    """A module with a router at each of these dotted names."""
    root = nn.Module()
    for name in names:
        module = root
        *path, last = name.split(".")
        for piece in path:
            if piece not in module._modules:
                module.add_module(piece, nn.Module())
            module = module._modules[piece]
        module.add_module(last, names[name] if isinstance(names, dict) else DemoTopKRouter())
    return root


def places(model: nn.Module | list[nn.Module]) -> dict[str, tuple[str, int]]:
    return {router.name: (router.stack, router.layer) for router in find_routers(model)}


@pytest.fixture
def _own_contracts() -> Iterator[None]:
    before = dict(CONTRACTS)
    yield
    CONTRACTS.clear()
    CONTRACTS.update(before)


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
    place = layer_names.place(name, has_decoder=True)
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
    assert layer_names.place(name, has_decoder=False) is None


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
    assert unrecognised_routers(model) == ["ExpertlessTopKRouter"]


def test_a_router_beside_counted_experts_is_not_missing() -> None:
    class DbrxRouter(DemoTopKRouter):
        pass

    class DbrxExperts(DemoTopKRouter):
        pass

    model = tree({"blocks.0.ffn.router": DbrxRouter(), "blocks.0.ffn.experts": DbrxExperts()})
    assert [router.contract.name for router in find_routers(model)] == ["experts' input"]
    assert unrecognised_routers(model) == []
    apart = tree({"blocks.1.ffn.router": DbrxRouter(), "blocks.10.ffn.experts": DbrxExperts(), "router": DbrxRouter()})
    assert unrecognised_routers(apart) == ["DbrxRouter"]


def test_a_buffer_of_running_counts_counts_only_without_a_router() -> None:
    block = nn.Module()
    block.register_buffer("routing_counts", torch.zeros(6))
    (found,) = find_routers(tree({"layers.2.moe": block}))
    assert (found.contract.name, found.layer, found.experts, found.top_k) == ("running counts", 2, 6, None)

    with_router = Block()
    with_router.register_buffer("routing_counts", torch.zeros(6))
    (found,) = find_routers(tree({"layers.2.moe": with_router}))
    assert found.contract.name == "index"


# -- reading


IDS = torch.tensor([[0, 3], [2, 1]])
MASK = torch.tensor([[True, False, True], [False, True, True]])
FLOATS = torch.rand(2, 4)


@pytest.mark.parametrize(
    ("output", "chosen"),
    [
        ((FLOATS, torch.rand(2, 2), IDS), IDS),
        ((torch.rand(2, 2), IDS, torch.tensor([1, 1, 1, 1])), IDS),  # counts per expert have one dimension
        ((IDS.int(), FLOATS), IDS.int()),
        (IDS, IDS),
        ((FLOATS, MASK), MASK),
        ((IDS, IDS), None),
        ((FLOATS, FLOATS), None),
        ((MASK, MASK), None),
        (FLOATS, None),
        ({"ids": IDS}, None),
    ],
)
def test_the_choice_is_told_by_dtype_and_shape(output: Any, chosen: Tensor | None) -> None:
    found = expert_indices(DemoTopKRouter(), output)
    assert (found is None) if chosen is None else torch.equal(found, chosen)


def read(class_name: str, output: Any, **attributes: Any) -> Tensor:
    contract = CONTRACTS[class_name]
    assert contract is not None
    return contract.read(DemoTopKRouter(**attributes), output)


def test_tables_of_scores_and_masks() -> None:
    scores = torch.tensor([[0.0, 0.7, 0.0], [0.2, 0.0, 0.0]], requires_grad=True)
    assert torch.equal(read("Llama4Router", (scores, FLOATS)), scores)
    assert torch.equal(read("NllbMoeTop2Router", (MASK, scores, FLOATS)), scores)
    assert not read("Llama4Router", (scores, FLOATS)).requires_grad
    one_hot = torch.tensor([[[0, 1, 0], [1, 0, 0]]])
    assert read("SwitchTransformersTop1Router", (one_hot, FLOATS, FLOATS)).tolist() == [
        [[False, True, False], [True, False, False]]
    ]


def test_the_largest_logits() -> None:
    logits = torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.2, 0.4]])
    assert read("JetMoeTopKGating", (IDS, IDS, FLOATS, [1, 2], logits)).tolist() == [[1, 2], [0, 2]]


def test_tokens_that_skip_a_layer_are_not_routed() -> None:
    weights = torch.tensor([[0.5, 0.0], [0.0, 0.3]])
    assert read("ZayaRouter", (FLOATS, weights, IDS, FLOATS)).tolist() == [[0, -1], [-1, 1]]


def test_a_distributed_tensor_tells_this_ranks_part() -> None:
    with rank_of(1, 2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        for placement in (Replicate(), Shard(0)):
            ids = DTensor.from_local(IDS, mesh, [placement], run_check=False)
            found = expert_indices(DemoTopKRouter(), (FLOATS, ids, torch.tensor([1, 1, 1, 1])))
            assert type(found) is Tensor
            assert torch.equal(found, IDS)


# -- contracts of one's own


@pytest.mark.usefixtures("_own_contracts")
def test_a_contract_of_ones_own() -> None:
    class StrangeRouting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(num_experts=4, num_experts_per_tok=2)

    model = tree({"layers.1.routing": StrangeRouting()})
    assert find_routers(model) == []
    register_router_contract("StrangeRouting", lambda router, output: output["ids"])
    (found,) = find_routers(model)
    assert (found.contract.name, found.layer, found.experts, found.top_k) == ("registered", 1, 4, 2)
    assert found.contract.read(found.module, {"ids": IDS}) is IDS


@pytest.mark.usefixtures("_own_contracts")
def test_a_contract_is_checked() -> None:
    with pytest.raises(ValueError, match=r"bare name of a class, got 'my\.Router'"):
        register_router_contract("my.Router", lambda router, output: output)
    with pytest.raises(TypeError, match="expected a function"):
        register_router_contract("MyRouter", "output[1]")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'JetMoeTopKGating' has a contract already; pass replace=True"):
        register_router_contract("JetMoeTopKGating", lambda router, output: output)
    register_router_contract("JetMoeTopKGating", lambda router, output: output, replace=True)
