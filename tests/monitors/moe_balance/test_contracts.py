"""How routers tell what they chose, and contracts that users register."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fake_ranks import rank_of
from support.routers import DemoTopKRouter, tree
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from areal_callbacks.monitors.moe_balance.contracts import CONTRACTS, expert_indices, register_router_contract
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.moe_balance.routers import (
    find_routers,
    find_routers_without_experts,
    find_unrecognised_routers,
)
from areal_callbacks.monitors.training_forward import TrainingForward


@pytest.fixture
def _own_contracts() -> Iterator[None]:
    before = dict(CONTRACTS)
    yield
    CONTRACTS.clear()
    CONTRACTS.update(before)


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


class Gate(nn.Linear):
    """A router that holds neither its number of experts nor its top-k."""


def chosen(gate: nn.Module, logits: Tensor) -> Tensor:  # noqa: ARG001
    return logits.topk(2).indices


@pytest.mark.usefixtures("_own_contracts")
@pytest.mark.parametrize("experts", [6, lambda gate: gate.out_features])
def test_a_contract_may_tell_the_number_of_experts(experts: Any) -> None:
    register_router_contract("Gate", chosen, experts=experts)
    model = tree({"layers.3.gate": Gate(4, 6)})
    (found,) = find_routers(model)
    assert (found.layer, found.experts, found.top_k) == (3, 6, None)
    assert find_routers_without_experts(model) == find_unrecognised_routers(model) == []


@pytest.mark.usefixtures("_own_contracts")
def test_the_number_in_a_contract_comes_before_the_routers_own() -> None:
    register_router_contract("DemoTopKRouter", chosen, experts=7)
    (found,) = find_routers(tree({"layers.0.router": DemoTopKRouter(experts=4)}))
    assert found.experts == 7


@pytest.mark.usefixtures("_own_contracts")
@pytest.mark.parametrize("experts", [None, lambda gate: None, lambda gate: 0, lambda gate: True])
def test_a_contract_without_a_number_of_experts_is_told_by_class(experts: Any) -> None:
    register_router_contract("Gate", chosen, experts=experts)
    model = tree({"layers.0.gate": Gate(4, 6), "mtp.layers.0.gate": Gate(4, 6)})
    assert find_routers(model) == []
    assert find_routers_without_experts(model) == ["Gate"]
    assert find_routers_without_experts(tree({"mtp.layers.0.gate": Gate(4, 6)})) == []  # no part of the balance


@pytest.mark.usefixtures("_own_contracts")
def test_a_contract_is_checked() -> None:
    for experts, kind in ((0, ValueError), (-1, ValueError), (True, TypeError), (4.0, TypeError), ("4", TypeError)):
        with pytest.raises(kind, match="experts: expected an integer of at least 1 or a function of the router, got "):
            register_router_contract("MyRouter", chosen, experts=experts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bare name of a class, got 'my\.Router'"):
        register_router_contract("my.Router", lambda router, output: output)
    with pytest.raises(TypeError, match="expected a function"):
        register_router_contract("MyRouter", "output[1]")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'JetMoeTopKGating' has a contract already; pass replace=True"):
        register_router_contract("JetMoeTopKGating", lambda router, output: output)
    register_router_contract("JetMoeTopKGating", lambda router, output: output, replace=True)


# -- in a monitor


def watch(model: nn.Module) -> MoEBalanceMonitor:
    forward = TrainingForward()
    monitor = MoEBalanceMonitor(forward)
    monitor.attach([model], torch.device("cpu"))
    forward.attach([model])
    return monitor


@pytest.mark.usefixtures("_own_contracts")
def test_a_router_that_holds_no_number_is_counted_with_the_contracts(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, hidden = nn.ModuleDict({"layers": nn.ModuleList([Gate(4, 6)])}), torch.randn(50, 4)
    model.forward = lambda hidden: model.layers[0](hidden)
    register_router_contract("Gate", chosen, experts=lambda gate: gate.out_features)
    monitor = watch(model)
    model(hidden)
    gate = model.layers[0]
    logits = hidden.double().numpy() @ gate.weight.detach().double().numpy().T + gate.bias.detach().double().numpy()
    expected = np.bincount(np.argsort(-logits, axis=1)[:, :2].ravel(), minlength=6)
    assert monitor.collect().sums["/0"].tolist() == expected.tolist()
    assert caplog.messages == []


@pytest.mark.usefixtures("_own_contracts")
def test_a_router_without_any_number_is_one_message(caplog: pytest.LogCaptureFixture) -> None:
    register_router_contract("Gate", chosen)
    assert watch(tree({"layers.0.gate": Gate(4, 6), "layers.1.gate": Gate(4, 6)})).routers == []
    assert caplog.messages == [
        "no moe_balance of router class Gate, which does not tell its number of experts; "
        "pass experts= to register_router_contract"
    ]
