"""What is looked up in the token embeddings of models, outside of their calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from areal_callbacks.monitors.consumers import Entry

_MOST = 8


class Lookup(NamedTuple):
    """One lookup.

    Attributes:
        entries: the models whose embedding it is, that which holds the module first.
        ids: what was looked up.
        arguments: of the running ``forward`` of the first of them, if it runs without having been called.
    """

    entries: tuple[Entry, ...]
    ids: Tensor
    arguments: Mapping[str, Any]

    def is_of(self, module: nn.Module) -> bool:
        """The embedding is this model's."""
        return any(entry.module is module for entry in self.entries)


class OutsideLookups:
    """The last lookups outside of all calls: a model is given the embeddings next, or its ``forward`` was called."""

    def __init__(self) -> None:
        self._lookups: list[Lookup] = []

    def add(self, lookup: Lookup) -> None:
        """Keep one; a few are enough for what is joined and given to one call."""
        self._lookups.append(lookup)
        del self._lookups[:-_MOST]

    def take(self) -> list[Lookup]:
        """Those since the last call, the oldest first."""
        taken, self._lookups = self._lookups, []
        return taken


def find_embedded(lookups: Iterator[Lookup], module: nn.Module, rows: int, width: int) -> list[Tensor]:
    """The ids ``[rows, …]`` that embeddings ``[rows, width]`` of a model were made of; empty if that is not told.

    One lookup may be as wide; several, one after the other, may leave room for what is no text.
    """
    fitting = [each.ids for each in lookups if each.is_of(module) and each.ids.dim() == 2 and len(each.ids) == rows]
    whole = [ids for ids in fitting if ids.shape[1] == width]
    if whole:
        return whole[-1:]
    return fitting if sum(ids.shape[1] for ids in fitting) <= width else []
