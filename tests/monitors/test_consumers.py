"""Which call consumes what it is given."""

from __future__ import annotations

import torch
from support.forwards import BATCH, READ, Listener, Model, Probe, Wrapper, observed
from torch import Tensor, nn

from areal_callbacks.monitors.forward_call import ForwardCall


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
            shapes.extend(ids.shape for ids in call.looked_up)

    root = nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 3))
    observed(root, Words())
    root(BATCH["input_ids"])
    assert shapes == [BATCH["input_ids"].shape]


class Speaker(nn.Module):
    """A model with an embedding of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.words(input_ids)).sum()


class Caller(nn.Module):
    """Calls ``forward`` of its model, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.speaker = Speaker()

    def forward(self, batch: dict[str, Tensor], calls: int) -> Tensor:
        kept = torch.zeros((), requires_grad=True)
        with torch.no_grad():
            self.speaker.forward(batch["input_ids"])
        return sum((self.speaker.forward(batch["input_ids"]) for _ in range(calls)), kept)


def test_a_model_whose_forward_is_called_consumes_what_it_embeds() -> None:
    listener = Listener()
    observed(caller := Caller(), listener)
    for calls in (2, 0):
        caller(BATCH, calls)
    assert listener.consumed == [("text", "Speaker", ["input_ids"])] * 2
    assert listener.outermost == [("Caller", True)] * 2
