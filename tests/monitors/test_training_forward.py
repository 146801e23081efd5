"""Which forwards train, and what the listener is offered of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from areal_callbacks.monitors.consumers import Kind
from areal_callbacks.monitors.training_forward import ForwardCall, TrainingForward
from areal_callbacks.safety.reporting import logger


class Probe(nn.Module):
    """A layer that notes whether it ran inside a training forward."""

    forward_state: TrainingForward

    def __init__(self, seen: list[bool]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.forward_state.active)
        return self.linear(x).tanh()


class Model(nn.Module):
    """Looks like a Transformers model."""

    base_model_prefix = "model"
    config = None

    def __init__(self, layer: nn.Module, reentrant: bool | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.reentrant = reentrant
        self.fails: BaseException | None = None

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, scale: int = 1) -> Tensor:
        if self.fails is not None:
            raise self.fails
        assert attention_mask is not None
        x = attention_mask.float().requires_grad_(torch.is_grad_enabled())
        if self.reentrant is None or not torch.is_grad_enabled():
            return self.layer(x).sum() * scale
        return checkpoint(self.layer, x, use_reentrant=self.reentrant).sum() * scale


class Wrapper(nn.Module):
    """A strategy around the model: calls it by keyword with what it takes out of a raw batch."""

    def __init__(self, model: nn.Module, reference: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.reference = model, reference

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        if self.reference is not None:
            with torch.no_grad():
                self.reference(**batch)
        return self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.consumed: list[tuple[str, str, list[str]]] = []
        self.outermost: list[tuple[str, bool]] = []

    def on_forward(self, module: nn.Module) -> None:
        self.begun.append(type(module).__name__)

    def on_consumed(self, kind: Kind, call: ForwardCall) -> None:
        self.consumed.append((kind, type(call.entry.module).__name__, sorted(call.inputs.named)))

    def on_outermost(self, call: ForwardCall, *, has_models: bool) -> None:
        self.outermost.append((type(call.entry.module).__name__, has_models))


BATCH = {"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3, dtype=torch.long)}


def observed(root: nn.Module, listener: Listener | None = None) -> TrainingForward:
    forward = TrainingForward(listener)
    forward.attach([root])
    for module in root.modules():
        if isinstance(module, Probe):
            module.forward_state = forward
    return forward


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


READ = ("text", "Model", ["attention_mask", "input_ids"])


def test_the_model_inside_consumes_and_the_outermost_call_ends_with_that() -> None:
    listener = Listener()
    wrapper = Wrapper(Model(Probe([])))
    observed(wrapper, listener)
    wrapper(BATCH)
    assert listener.consumed == [READ]
    assert listener.outermost == [("Wrapper", True)]
    assert listener.begun == ["Wrapper", "Model"]


def test_every_call_of_the_innermost_model_consumes_and_an_outer_one_without_any_does_not() -> None:
    """Outputs that are used again, several passages, an early return."""
    listener = Listener()

    class Passages(Wrapper):
        config = None
        base_model_prefix = "model"

        def forward(self, input_ids: Tensor, calls: int) -> Tensor:  # type: ignore[override]
            kept = torch.zeros((), requires_grad=True)
            return sum((self.model(input_ids=input_ids, attention_mask=input_ids) for _ in range(calls)), kept)

    passages = Passages(Model(Probe([])))
    observed(passages, listener)
    for calls in (3, 0, 1):
        passages(BATCH["input_ids"], calls)
    assert listener.consumed == [READ] * 4
    assert listener.outermost == [("Passages", True)] * 3


def test_a_model_that_embeds_itself_consumes_what_no_model_inside_it_trained_on() -> None:
    """A frozen critic inside: it runs without gradients."""
    listener = Listener()

    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head, self.critic = nn.Embedding(9, 4), nn.Linear(4, 9), Model(Probe([]))

        def forward(self, input_ids: Tensor) -> Tensor:
            with torch.no_grad():
                self.critic(input_ids=input_ids, attention_mask=input_ids)
            return self.head(self.words(input_ids)).sum()

    observed(speaker := Speaker(), listener)
    speaker(BATCH["input_ids"])
    assert listener.consumed == [("text", "Speaker", ["input_ids"])]


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


def test_positional_arguments_of_a_model_are_named() -> None:
    listener = Listener()
    model = Model(Probe([]))
    observed(model, listener)
    model(BATCH["input_ids"], BATCH["attention_mask"], scale=2)
    assert listener.consumed == [("text", "Model", ["attention_mask", "input_ids", "scale"])]


def test_what_is_embedded_is_told_where_no_model_takes_text() -> None:
    shapes = []

    class Words(Listener):
        def on_outermost(self, call: ForwardCall, *, has_models: bool) -> None:
            assert not has_models
            shapes.append(call.embedded)

    root = nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 3))
    observed(root, Words())
    root(BATCH["input_ids"])
    assert shapes == [{BATCH["input_ids"].shape}]


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


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_module_that_was_compiled_in_place(backend: str) -> None:
    torch._dynamo.reset()
    model = Model(nn.Linear(3, 3))
    model.compile(backend=backend)
    listener = Listener()
    forward = observed(model, listener)
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
