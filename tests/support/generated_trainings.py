"""Trainings built out of parts: models, ways to call them, and losses that call them once, twice or later."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from support.generated_batches import EVERY, OF_DECODERS, OF_ENCODERS, VOCABULARY, Batch
from support.generated_models import Pair
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LAYOUTS = {
    "llama": OF_DECODERS,
    "moe": OF_DECODERS,
    "bert": OF_ENCODERS,
    "t5": ("right", "none"),
    "own": EVERY,
    "pair": OF_ENCODERS,
}
STYLES = ("keyword", "positional", "dict", "dataclass", "namedtuple")


@dataclass
class Record:
    """A batch as a dataclass."""

    input_ids: Tensor
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    labels: Tensor | None = None
    cu_seq_lens_q: Tensor | None = None
    cu_seq_lens_k: Tensor | None = None
    key_padding_mask: Tensor | None = None


Row = namedtuple("Row", [field.name for field in fields(Record)])


def style_arguments(style: str, batch: dict[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, in a style."""
    if style == "keyword":
        return (), dict(batch)
    if style == "positional":
        rest = {name: value for name, value in batch.items() if name not in ("input_ids", "attention_mask")}
        return (batch["input_ids"], batch.get("attention_mask")), rest
    if style == "dict":
        return (dict(batch),), {}
    record = Record(**batch)
    return (record if style == "dataclass" else Row(**vars(record)),), {}


def read_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """The batch out of a call in any style."""
    (first, *rest) = args or ({},)
    if isinstance(first, Tensor):
        named = {"input_ids": first, **({"attention_mask": rest[0]} if rest else {})}
    elif isinstance(first, dict):
        named = first
    else:
        named = vars(first) if isinstance(first, Record) else first._asdict()
    return {name: value for name, value in {**named, **kwargs}.items() if value is not None}


def square(output: Any) -> Tensor:
    """A loss of any model's output."""
    logits: Tensor = output if isinstance(output, Tensor) else output[1 if "loss" in output else 0]
    return logits.float().pow(2).mean()


class Losses:
    """What a training step does with its model; one method a kind."""

    def __init__(self, model: nn.Module, teacher: nn.Module) -> None:
        self.model, self.teacher = model, teacher
        self.kept: Tensor | None = None

    def once(self, batch: dict[str, Tensor]) -> Tensor:
        return square(self.model(**batch, **(self._context(batch) if isinstance(self.model, Pair) else {})))

    def _context(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same rows again, with another word in the place of each."""
        mask = batch.get("attention_mask")
        context = {"context_ids": batch["input_ids"].clamp(max=VOCABULARY - 1) + 1}
        return context if mask is None else {**context, "context_padding_mask": mask == 0}

    def uncalled(self, batch: dict[str, Tensor]) -> Tensor:
        """The loop calls ``forward`` of the body."""
        body: Any = self.model.base_model
        return square(body.forward(**{name: value for name, value in batch.items() if name != "labels"}))

    def prompted(self, batch: dict[str, Tensor]) -> Tensor:
        """Two trained vectors stand before the embeddings."""
        table: Any = self.model.get_input_embeddings()
        words, mask = table(batch["input_ids"]), batch.get("attention_mask")
        whole = torch.cat([torch.zeros(len(words), 2, words.shape[-1]), words], 1)
        wider = {} if mask is None else {"attention_mask": torch.cat([torch.ones(len(mask), 2).long(), mask], 1)}
        return square(self.model(inputs_embeds=whole, **wider))

    frozen = compiled = blocks_reentrant = blocks = once

    def after_no_grad(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            self.once(batch)
        return self.once(batch)

    def twice(self, batch: dict[str, Tensor]) -> Tensor:
        return self.once(batch) + self.once(batch)

    def flipped(self, batch: dict[str, Tensor]) -> Tensor:
        """A bi-encoder: the same model on two batches."""
        return self.once(batch) + self.once({name: value.flip(0) for name, value in batch.items()})

    def both(self, batch: dict[str, Tensor]) -> Tensor:
        """Two models that train together."""
        return self.once(batch) + square(self.teacher(**batch))

    def embedded(self, batch: dict[str, Tensor]) -> Tensor:
        """The model is given embeddings, made outside of it."""
        rest = {name: value for name, value in batch.items() if name != "input_ids"}
        table: Any = self.model.get_input_embeddings()
        return square(self.model(inputs_embeds=table(batch["input_ids"]), **rest))

    def remembered(self, batch: dict[str, Tensor]) -> Tensor:
        """The second call gives the outputs of the first."""
        kept, self.kept = self.kept, None
        if kept is None:
            kept = self.kept = self.once(batch)
        return kept

    def taught(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            target = Losses(self.teacher, self.model).once(batch)
        return self.once(batch) - target

    def skipped(self, batch: dict[str, Tensor]) -> Tensor:
        """The model does not run."""
        return next(self.model.parameters()).sum() * 0

    def in_backward(self, batch: dict[str, Tensor]) -> Tensor:
        """A gradient cache: the forward that trains runs in a hook of backward."""
        with torch.no_grad():
            loss = self.once(batch)
        loss.requires_grad_()

        def train(gradient: Tensor) -> None:
            with torch.enable_grad():
                (self.once(batch) * gradient).backward()

        loss.register_hook(train)
        return loss * 1

    def whole_reentrant(self, batch: dict[str, Tensor]) -> Tensor:
        return self._checkpoint(batch, reentrant=True)

    def whole(self, batch: dict[str, Tensor]) -> Tensor:
        return self._checkpoint(batch, reentrant=False)

    def _checkpoint(self, batch: dict[str, Tensor], *, reentrant: bool) -> Tensor:
        run: Callable[[Tensor], Tensor] = lambda scale: self.once(batch) * scale  # noqa: E731
        loss: Tensor = checkpoint(run, torch.ones((), requires_grad=True), use_reentrant=reentrant)
        return loss


KINDS = {
    "once": 1,
    "frozen": 1,
    "compiled": 1,
    "blocks_reentrant": 1,
    "blocks": 1,
    "after_no_grad": 1,
    "twice": 2,
    "flipped": 2,
    "both": 2,
    "embedded": 1,
    "remembered": 1,
    "taught": 1,
    "skipped": 0,
    "uncalled": 1,
    "prompted": 1,
    "in_backward": 1,
    "whole_reentrant": 1,
    "whole": 1,
}
"""Kind of loss → training calls of the model in a step."""

IMPOSSIBLE = {
    ("own", "embedded"),
    ("t5", "embedded"),
    *((model, kind) for model in ("own", "pair", "t5") for kind in ("uncalled", "prompted")),
    ("pair", "embedded"),
    ("pair", "both"),
    ("moe", "prompted"),  # whose positions are routed, too
    ("moe", "both"),  # two models whose layers have the same names
}
"""Models that a kind of loss cannot have."""

LAYOUTS_OF = {
    "flipped": ("right", "left", "none", "labels"),  # every argument has a row for each sequence
    "embedded": ("right", "left", "none"),  # embeddings show no padding
    "prompted": ("right", "left", "none"),
    "uncalled": ("right", "left", "none", "segments"),  # a body has no labels
}
"""The layouts that a kind of loss is limited to."""


class Composite(nn.Module):
    """A loss as a module of its own, called in any style."""

    def __init__(self, model: nn.Module, teacher: nn.Module, kind: str) -> None:
        super().__init__()
        self.model, self.kind = model, kind
        self.other = teacher if kind == "both" else None
        self._losses = Losses(model, teacher)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = getattr(self._losses, self.kind)(read_arguments(args, kwargs))
        return loss


def prepare(model: nn.Module, kind: str) -> nn.Module:
    """The model as this kind of loss needs it."""
    if kind in ("blocks", "blocks_reentrant") and hasattr(model, "gradient_checkpointing_enable"):
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": kind == "blocks_reentrant"})
    if kind == "frozen":
        next(model.parameters()).requires_grad_(False)
    return model


def calls_of(kind: str) -> int:
    """How often the loop calls its loss in a step."""
    return 2 if kind == "remembered" else 1


@dataclass(frozen=True)
class Training:
    """One example: what is trained on what, in which manner."""

    model: str
    layout: str
    style: str
    kind: str
    composite: bool
    rows: tuple[tuple[int, ...], ...]
    pads: int
    steps: int

    def expected(self, batch: Batch) -> list[int]:
        """Lengths that every metric has to be made of, by construction."""
        lengths = batch.lengths
        if self.model in ("t5", "pair"):
            lengths = [*lengths, *lengths]  # its labels, or its context, are as long as its inputs
        return lengths * KINDS[self.kind] * self.steps
