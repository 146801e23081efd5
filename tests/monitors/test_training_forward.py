"""Which forwards train, and whether a failure or an end leaves anything behind."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from support.forwards import BATCH, READ, Listener, Model, Probe, Wrapper, observed
from torch import nn
from torch.utils.checkpoint import checkpoint

from areal_callbacks.monitors.consumers import Kind
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.safety.reporting import logger


def test_training_forwards_alone_are_active() -> None:
    seen: list[bool] = []
    model = Model(Probe(seen))
    forward = observed(model)
    model(**BATCH)
    with torch.no_grad():
        model(**BATCH)
    with torch.inference_mode():
        model(**BATCH)
    model.eval()
    model(**BATCH)
    model.train()
    model(**BATCH)
    assert seen == [True, False, False, False, True]
    assert forward.forwards == 2
    assert not forward.active


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_recomputation_is_no_second_forward(reentrant: bool, whole: bool) -> None:
    """With reentrant checkpointing of the whole model its recomputation is the only call with gradients."""
    seen: list[bool] = []
    model = Model(Probe(seen), reentrant=None if whole else reentrant)
    forward = observed(model)
    for _ in range(2):
        if whole:
            anchor = torch.ones(2, 3, requires_grad=True)
            checkpoint(
                lambda x: model(attention_mask=x.detach() * 0 + 1) + x.sum() * 0, anchor, use_reentrant=reentrant
            ).backward()
        else:
            model(**BATCH).backward()
    assert len(seen) == 4
    assert sum(seen) == 2
    assert forward.forwards == 2


def test_a_gradient_cache_trains_inside_backward() -> None:
    seen: list[bool] = []
    listener = Listener()
    model = Model(Probe(seen), reentrant=False)
    forward = observed(model, listener)
    with torch.no_grad():
        model(**BATCH)
    loss = torch.zeros((), requires_grad=True) * 1
    loss.register_hook(lambda _: torch.enable_grad()(lambda: model(**BATCH).backward())())
    loss.backward()
    assert seen == [False, True, False]  # embedded, trained, recomputed
    assert listener.consumed == [READ]
    assert forward.forwards == 1


def test_backward_inside_the_outermost_call() -> None:
    """A host whose step runs the backward itself, with whole models under both kinds of checkpointing."""
    listener = Listener()

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(Probe([]))

        def forward(self, reentrant: bool) -> None:
            anchor = torch.ones(2, 3, requires_grad=True)
            one = lambda x: self.model(attention_mask=x.detach() * 0 + 1) + x.sum() * 0  # noqa: E731
            checkpoint(one, anchor, use_reentrant=reentrant).backward()

    observed(step := Step(), listener)
    for reentrant in (False, True):
        step(reentrant)
    assert [kind for kind, *_ in listener.consumed] == ["text", "text"]


def test_a_reference_model_inside_a_training_step_does_not_train() -> None:
    trained: list[bool] = []
    referred: list[bool] = []
    listener = Listener()
    wrapper = Wrapper(Model(Probe(trained)), Model(Probe(referred)))
    observed(wrapper, listener)
    wrapper(BATCH)
    assert (trained, referred) == ([True], [False])
    assert listener.consumed == [READ]


def test_nothing_is_told_of_forwards_that_do_not_train() -> None:
    listener = Listener()
    model = Model(Probe([])).eval()
    observed(model, listener)
    model(**BATCH)
    assert listener.consumed == listener.outermost == listener.begun == []


@pytest.mark.parametrize("error", [RuntimeError("in the model"), KeyboardInterrupt("in the model")])
def test_a_forward_that_raises_does_not_stay_open(error: BaseException) -> None:
    seen: list[bool] = []
    model = Model(Probe(seen))
    wrapper = Wrapper(model)
    observed(wrapper, listener := Listener())
    model.fails = error
    with pytest.raises(type(error), match="in the model"):
        wrapper(BATCH)
    model.fails = None
    with torch.no_grad():
        wrapper(BATCH)
    wrapper(BATCH)
    assert seen == [False, True]
    assert listener.consumed == [READ]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_module_that_is_compiled_in_place_before_or_after(backend: str, before: bool) -> None:
    torch._dynamo.reset()
    model = Model(nn.Linear(3, 3))
    listener = Listener()
    if before:
        model.compile(backend=backend)
    forward = observed(model, listener)
    if not before:
        model.compile(backend=backend)
    model(**BATCH).backward()
    with torch.no_grad():
        model(**BATCH)
    assert forward.forwards == 1
    assert listener.consumed == [READ]
    forward.detach()
    model(**BATCH)
    assert forward.forwards == 1
    torch._dynamo.reset()


def test_detaching_leaves_nothing_behind() -> None:
    wrapper = Wrapper(Model(Probe([])))
    forward = observed(wrapper, listener := Listener())
    assert wrapper._forward_pre_hooks
    assert wrapper.model._forward_hooks
    forward.detach()
    for module in wrapper.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not module._forward_pre_hooks_with_kwargs
        assert not module._forward_hooks_always_called
    wrapper(BATCH)
    assert listener.begun == []


def test_a_listener_that_raises_is_said_once_and_the_model_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Listener):
        def on_consumed(self, kind: Kind, call: ForwardCall) -> None:
            raise OSError("lost")

    model = Model(nn.Linear(3, 3))
    forward = observed(model, Broken())
    for _ in range(3):
        model(**BATCH).backward()
    assert forward.failed
    assert not model._forward_hooks
    (record,) = [record for record in caplog.records if record.name == logger.name]
    assert "lost" in record.getMessage()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_of_an_observed_model_are_not_observed(duplicate: Any) -> None:
    listener = Listener()
    model = Model(nn.Linear(3, 3))
    observed(model, listener)
    twin = duplicate(model)
    twin(**BATCH).backward()
    assert listener.begun == []
    model(**BATCH)
    assert listener.begun == ["Model"]
