"""Small models that look like those of Transformers, and a listener to their training forwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from areal_callbacks.monitors.consumers import Kind
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.training_forward import TrainingForward


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
        self.untrained = 0
        self.embedded: list[str] = []

    def on_forward(self, module: nn.Module) -> None:
        self.begun.append(type(module).__name__)

    def on_untrained_forward(self) -> None:
        self.untrained += 1

    def on_consumed(self, kind: Kind, call: ForwardCall) -> None:
        self.consumed.append((kind, type(call.entry.module).__name__, sorted(call.inputs.named)))

    def on_embedded(self, call: ForwardCall) -> None:
        self.embedded.append(type(call.entry.module).__name__)

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


READ = ("text", "Model", ["attention_mask", "input_ids"])
