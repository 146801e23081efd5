"""Modules that count for themselves: a buffer that grows and one that holds the last forward, against a recount."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.observed_moe import Observed, by_hand
from support.toy_moe import WIDTH, ToyMoE, batches
from torch import Tensor, nn

from areal_callbacks.monitors.moe_balance.routers import find_routers

EXPERTS = 4


class SelfCounting(nn.Module):
    """An MoE layer without a router module, as one with a fused kernel may be.

    Args:
        holds: what its buffer holds after a forward: the ``"last"`` counts, in place or ``"replaced"``, or all
            counts, ``"grown"``.
    """

    def __init__(self, holds: str) -> None:
        super().__init__()
        self.register_buffer("routing_counts", torch.zeros(EXPERTS), persistent=False)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.holds = holds
        self.fails = False

    def forward(self, hidden: Tensor) -> Tensor:
        chosen = self.gate(hidden).topk(2, -1).indices.reshape(-1)
        counts = torch.zeros(EXPERTS).scatter_add(0, chosen, torch.ones(chosen.numel()))
        if self.holds == "last":
            self.routing_counts.copy_(counts)
        elif self.holds == "replaced":
            self.routing_counts = counts
        else:
            self.routing_counts += counts
        if self.fails:
            raise RuntimeError("after counting")
        return hidden


class Wrapper(nn.Module):
    """Forwards attributes, as PEFT, DDP-like and quantisation wrappers do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


class WrappingTopKRouter(Wrapper):
    """Is called like a router, too."""


class PropertyWrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @property
    def routing_counts(self) -> Tensor:
        counts: Tensor = self.inner.routing_counts
        return counts

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.inner(hidden)
        return result


def recount(layer: SelfCounting, *inputs: Tensor) -> list[int]:
    hidden = torch.cat(inputs).double()
    logits = hidden @ layer.gate.weight.detach().double().T
    chosen = np.argsort(-logits.numpy(), axis=1)[:, :2]
    counts: list[int] = np.bincount(chosen.ravel(), minlength=EXPERTS).tolist()
    return counts


@pytest.mark.parametrize("holds", ["grown", "last", "replaced"])
@pytest.mark.parametrize("same", [False, True])
def test_both_kinds_of_buffers_are_counted(holds: str, same: bool) -> None:
    torch.manual_seed(1)
    layer = SelfCounting(holds)
    model = nn.Sequential(layer)
    data = [torch.rand(5, WIDTH)] * 6 if same else [torch.rand(5, WIDTH) for _ in range(6)]
    with torch.no_grad():
        model(data[0])
    observed = Observed(model)
    for batch in data[:4]:
        with torch.no_grad():
            model(torch.rand(9, WIDTH))
        model(batch)
    assert observed.counts() == {"/0": recount(layer, *data[:4])}
    for batch in data[4:]:
        model(batch)
    assert observed.counts() == {"/0": recount(layer, *data[4:])}


@pytest.mark.parametrize("holds", ["grown", "last"])
def test_a_forward_that_raises_after_it_has_counted_counts(holds: str) -> None:
    torch.manual_seed(2)
    layer, inputs = SelfCounting(holds), [torch.rand(5, WIDTH) for _ in range(3)]
    model = nn.Sequential(layer)
    observed = Observed(model)
    for index, batch in enumerate(inputs):
        layer.fails = index == 1
        if layer.fails:
            with pytest.raises(RuntimeError, match="after counting"):
                model(batch)
        else:
            model(batch)
    assert observed.counts() == {"/0": recount(layer, *inputs)}


def test_what_one_layer_shows_holds_for_all_of_its_class() -> None:
    """The second layer's counts rise by chance, as growing ones do."""

    class Told(nn.Module):
        def __init__(self, *counts: list[int]) -> None:
            super().__init__()
            self.register_buffer("routing_counts", torch.zeros(2))
            self.left = list(counts)

        def forward(self, hidden: Tensor) -> Tensor:
            self.routing_counts.copy_(torch.tensor(self.left.pop(0)))
            return hidden

    model = nn.Sequential(Told([3, 1], [1, 3]), Told([1, 1], [3, 2]))
    observed = Observed(model)
    for _ in range(2):
        model(torch.rand(2, WIDTH, requires_grad=True))
    assert observed.counts() == {"/0": [4, 4], "/1": [4, 3]}


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=2, max_size=6))
def test_growing_counts_are_never_taken_for_those_of_a_forward(counts: list[list[int]]) -> None:
    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("routing_counts", torch.zeros(3, dtype=torch.int64))

        def forward(self, hidden: Tensor, counts: list[int]) -> Tensor:
            self.routing_counts += torch.tensor(counts)
            return hidden

    layer = Told()
    observed = Observed(layer)
    for row in counts:
        layer(torch.rand(2, requires_grad=True), row)
    assert observed.counts() == {"/0": np.sum(counts, 0).tolist()}


@pytest.mark.parametrize("wrap", [Wrapper, PropertyWrapper, lambda layer: Wrapper(Wrapper(layer))])
def test_a_buffer_is_counted_once_through_wrappers(wrap: Any) -> None:
    layer, inputs = SelfCounting("grown"), torch.rand(5, WIDTH)
    model = nn.Sequential(wrap(layer))
    assert [router.module for router in find_routers(model)] == [layer]
    observed = Observed(model)
    model(inputs)
    assert observed.counts() == {"/0": recount(layer, inputs)}


@pytest.mark.parametrize("wrap", [Wrapper, WrappingTopKRouter])
def test_a_router_is_counted_once_through_wrappers(wrap: Any) -> None:
    plain, model, data = ToyMoE(), ToyMoE(), batches(1)
    model.load_state_dict(plain.state_dict())
    expected = Observed(plain)
    plain(data[0])
    for layer in model.layers.values():
        layer.router = wrap(layer.router)
    observed = Observed(model)
    model(data[0])
    assert observed.counts() == expected.counts()


def add_counts(router: nn.Module, _: Any, output: tuple[Tensor, ...]) -> None:
    router.routing_counts.add_(output[2])


def test_buffers_that_hooks_fill_count_nothing_twice() -> None:
    """As AReaL attaches them to the routers of a model: a buffer, and a hook that adds what the router chose."""
    model, data = ToyMoE(), batches(1)
    for layer in model.layers.values():
        layer.router.register_buffer("routing_counts", torch.zeros(layer.router.num_experts), persistent=False)
        layer.router.register_forward_hook(add_counts)
    observed = Observed(model)
    model(data[0])
    assert observed.counts() == by_hand(model, data)


def test_a_buffer_that_a_hook_fills_makes_an_unknown_router_countable() -> None:
    class Gate(nn.Linear):
        pass

    def add(gate: Gate, _: Any, logits: Tensor) -> None:
        chosen = logits.detach().topk(2, -1).indices.reshape(-1)
        gate.routing_counts.add_(torch.bincount(chosen, minlength=EXPERTS))

    gate, inputs = Gate(WIDTH, EXPERTS, bias=False), torch.rand(7, WIDTH)
    gate.register_buffer("routing_counts", torch.zeros(EXPERTS, dtype=torch.int64), persistent=False)
    gate.register_forward_hook(add)
    model = nn.Sequential(gate)
    observed = Observed(model)
    model(inputs)
    logits = inputs.double() @ gate.weight.detach().double().T
    chosen = np.argsort(-logits.numpy(), axis=1)[:, :2]
    assert observed.counts() == {"/0": np.bincount(chosen.ravel(), minlength=EXPERTS).tolist()}
