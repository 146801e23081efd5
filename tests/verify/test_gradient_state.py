"""Which calls train, by hand: a linear layer that counts its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.utils.checkpoint import checkpoint

from areal_callbacks.verify.gradient_state import GradientState


@pytest.fixture
def state() -> Iterator[GradientState]:
    with GradientState() as entered:
        yield entered


class Layer(nn.Linear):
    """Notes at each call whether it trains."""

    def __init__(self, state: GradientState) -> None:
        super().__init__(2, 2)
        self.state, self.trained = state, list[bool]()

    def forward(self, value: Tensor) -> Tensor:
        self.trained.append(self.state.trains())
        return super().forward(value)


def ones() -> Tensor:
    return torch.ones(1, 2, requires_grad=True)


def test_with_and_without_gradients(state: GradientState) -> None:
    layer = Layer(state)
    layer(ones()).sum().backward()
    with torch.no_grad():
        layer(ones())
    with torch.inference_mode():
        layer(ones())
    assert layer.trained == [True, False, False]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_trains_once(state: GradientState, reentrant: bool) -> None:
    layer = Layer(state)
    checkpoint(layer, ones(), use_reentrant=reentrant).sum().backward()
    assert layer.trained == [True, False]


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_checkpoints_inside_checkpoints(state: GradientState, outer: bool, inner: bool) -> None:
    layer = Layer(state)
    nested: Callable[[Tensor], Tensor] = lambda value: checkpoint(layer, value, use_reentrant=inner)  # noqa: E731
    checkpoint(nested, ones(), use_reentrant=outer).sum().backward()
    assert layer.trained[0]
    assert sum(layer.trained) == 1
    assert len(layer.trained) >= 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_without_gradients_trains_nothing(state: GradientState, reentrant: bool) -> None:
    layer = Layer(state)
    with torch.no_grad():
        checkpoint(layer, ones(), use_reentrant=reentrant)
    assert layer.trained == [False]


@pytest.mark.parametrize("reentrant", [True, False, None])
def test_a_forward_in_a_hook_of_backward_trains(state: GradientState, reentrant: bool | None) -> None:
    layer = Layer(state)
    loss = ones().sum()

    def train(_: Tensor) -> None:
        with torch.enable_grad():
            output = layer(ones()) if reentrant is None else checkpoint(layer, ones(), use_reentrant=reentrant)
            output.sum().backward()

    loss.register_hook(train)
    loss.backward()
    assert layer.trained == ([True] if reentrant is None else [True, False])


class Recomputing(torch.autograd.Function):
    """A checkpoint that somebody wrote; with ``runs`` False its forward does not run the layer."""

    @staticmethod
    def forward(ctx, value, layer, runs):  # type: ignore[no-untyped-def]
        ctx.layer = layer
        ctx.save_for_backward(value)
        return layer(value) if runs else value.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (value,) = ctx.saved_tensors
        with torch.enable_grad():
            value = value.detach().requires_grad_()
            ctx.layer(value).backward(gradient)
        return value.grad, None, None


def test_an_own_checkpoint_trains_once(state: GradientState) -> None:
    layer = Layer(state)
    Recomputing.apply(ones(), layer, True).sum().backward()
    assert layer.trained == [True, False]


def test_a_backward_that_computes_what_its_forward_did_not_trains(state: GradientState) -> None:
    layer = Layer(state)
    Recomputing.apply(ones(), layer, False).sum().backward()
    assert layer.trained == [True]


@pytest.mark.skipif(not hasattr(PipelineStage, "_compute_outputs"), reason="made-up inputs are run without gradients")
def test_a_stage_that_learns_its_shapes_does_not_train(state: GradientState) -> None:
    layer = Layer(state)
    PipelineStage._compute_outputs(object.__new__(PipelineStage), ones(), module=layer)
    layer(ones())
    assert layer.trained == [False, True]


def test_nothing_is_left_of_it() -> None:
    before = vars(torch.autograd.Function)["apply"]
    with GradientState():
        assert vars(torch.autograd.Function)["apply"] is not before
    assert vars(torch.autograd.Function)["apply"] is before
