"""What is known of the modules whose calls are watched, none of which is kept."""

from __future__ import annotations

import weakref

from torch import nn

from areal_callbacks.monitors.consumers import Entry


class Watched:
    """One module.

    Attributes:
        reference: to it.
        entry: how its calls are read; None where only one of its methods is watched.
        has_models: models in it take text; None where no loop was said to call it.
        tells_inputs: what it is given counts.
        was_called: it has consumed something.
    """

    __slots__ = ("entry", "has_models", "reference", "tells_inputs", "was_called")

    def __init__(self, module: nn.Module) -> None:
        self.reference = weakref.ref(module)
        self.entry: Entry | None = None
        self.has_models: bool | None = None
        self.tells_inputs = True
        self.was_called = False


class WatchedModules:
    """Finds them in one look: a dictionary with weak keys takes several Python calls, and this is the step path."""

    def __init__(self) -> None:
        self._by_address: dict[int, Watched] = {}

    def find(self, module: nn.Module) -> Watched | None:
        """None for a module that is not known: the address of a freed one may be another's now."""
        found = self._by_address.get(id(module))
        return found if found is not None and found.reference() is module else None

    def of(self, module: nn.Module) -> Watched:
        """Also of a module that was not known."""
        found = self.find(module)
        if found is None:
            found = self._by_address[id(module)] = Watched(module)
        return found

    def clear(self) -> None:
        """Know none any more."""
        self._by_address.clear()
