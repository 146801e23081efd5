"""The text of models that are never called: the loop calls their ``forward``, which no hook sees."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping

from torch import nn

from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput.lengths import Lengths
from areal_callbacks.monitors.throughput.sequences import SequenceCounts


class UncalledModels:
    """Keeps what was embedded for each of them, until it is called after all, or the interval ends."""

    def __init__(self) -> None:
        self._counts: MutableMapping[nn.Module, SequenceCounts] = weakref.WeakKeyDictionary()

    @property
    def is_empty(self) -> bool:
        """Nothing was embedded since :meth:`join`."""
        return not self._counts

    def add(self, model: nn.Module, lengths: Lengths | None) -> None:
        """The lengths of what was embedded; None if they could not be read."""
        self._counts.setdefault(model, SequenceCounts()).add_read(lengths)

    def discard(self, call: ForwardCall) -> None:
        """These models are called: what was embedded before was meant for their calls, or for none."""
        if self._counts:
            for each in (call, *call.around()):
                self._counts.pop(each.module, None)

    def join(self, sequences: SequenceCounts) -> bool:
        """Add all to these, and start over; whether there was any. Copies from the device."""
        counts = list(self._counts.values())
        self._counts.clear()
        for each in counts:
            sequences.join(each)
        return bool(counts)
