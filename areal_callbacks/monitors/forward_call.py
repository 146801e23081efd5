"""A call in progress of a module that is watched, and who is told about it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from areal_callbacks.monitors.consumers import Entry, Kind
from areal_callbacks.monitors.forward_inputs import Inputs, may_hold_batch, name_inputs, read_inputs
from areal_callbacks.monitors.lookups import Lookup


class ForwardListener(Protocol):
    """Told about forwards."""

    def on_forward(self, module: nn.Module) -> None:
        """A training forward of this module begins."""

    def on_untrained_forward(self) -> None:
        """A forward begins that does not train: evaluation, generation."""

    def on_consumed(self, kind: Kind, call: ForwardCall) -> None:
        """A module has consumed its inputs in a training forward."""

    def on_outermost(self, call: ForwardCall, *, has_models: bool) -> None:
        """The training forward of what the loop calls has ended; models in it have told what they consumed."""

    def on_embedded(self, call: ForwardCall) -> None:
        """Outside of all calls something was looked up in the embedding of a model that was never called so far."""


class ForwardCall:
    """A call in progress.

    Attributes:
        entry: whose.
        module: of the entry.
        trains: in training mode, with gradients, for the first time, and not traced.
        args: as given.
        kwargs: as given.
        outer: the call that it is made in, if that is watched.
        consumed: what it, or a call inside it, has consumed.
        sources: the lengths that an encoder in it has read, for the decoder that comes next.
        embedded: what was looked up in the embeddings of a model, but not in a call of it; of the outermost call.
        embedded_before: the same before it, outside of all calls.
        looked_up: in any embedding of the module itself, if that does not name its text.
    """

    __slots__ = (
        "_inputs",
        "args",
        "consumed",
        "embedded",
        "embedded_before",
        "entry",
        "error",
        "kwargs",
        "looked_up",
        "module",
        "outer",
        "sources",
        "trains",
    )

    def __init__(
        self, entry: Entry, outer: ForwardCall | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, trains: bool
    ) -> None:
        self.entry, self.module, self.outer, self.trains = entry, entry.module, outer, trains
        self.consumed: set[Kind] = set()
        self.sources: torch.Tensor | None = None
        self.embedded: Sequence[Lookup] = ()
        self.embedded_before: Sequence[Lookup] = ()
        self.looked_up: Sequence[torch.Tensor] = ()
        self.error = sys.exc_info()[1]
        self.args, self.kwargs = (args, dict(kwargs)) if trains else ((), {})
        self._inputs = read_inputs(entry.names, args, kwargs) if trains and may_hold_batch(args, kwargs) else None

    @property
    def inputs(self) -> Inputs:
        """The arguments by name, as they were at the beginning; empty if it does not train."""
        if self._inputs is None:
            self._inputs = name_inputs(self.entry.names, self.args, self.kwargs)
        return self._inputs

    def around(self) -> Iterator[ForwardCall]:
        """The calls that it is made in, the innermost first."""
        outer = self.outer
        while outer is not None:
            yield outer
            outer = outer.outer

    def lookups(self) -> Iterator[Lookup]:
        """What was looked up outside of the models' calls, before and in the outermost of these calls."""
        *_, outermost = (self, *self.around())
        return itertools.chain(outermost.embedded_before, outermost.embedded)

    def with_outer(self) -> dict[str, Any]:
        """The inputs by name, with those of the calls around it that it was not given."""
        calls = reversed([self, *self.around()])
        return {name: value for call in calls for name, value in call.inputs.named.items() if value is not None}


def read_lookup(lookup: Lookup, outer: ForwardCall | None) -> ForwardCall:
    """As a call of the model, which was not called."""
    return ForwardCall(lookup.entries[0], outer, (), {**lookup.arguments, "input_ids": lookup.ids}, trains=True)
