"""The operator that adds routed assignments to a counter, exact in eager and compiled code.

Whether a forward counts is known only at run time, while compiled code is traced once. So the decision lies in the
*body* of an operator, which tracing does not look into: it reads the flag of the forward that runs now.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from areal_callbacks.core.reporting import report_once
from areal_callbacks.monitors.training_forward import TrainingForward

_LIBRARY = torch.library.Library("areal_callbacks", "DEF")
_LIBRARY.define("count_ids(Tensor ids, Tensor(a!) counts, int gate) -> ()")
_LIBRARY.define("count_mask(Tensor mask, Tensor(a!) counts, int gate) -> ()")

_GATES: weakref.WeakValueDictionary[int, Gate] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class Gate:
    """Lets counts through while a training forward runs; its number is a constant in compiled code.

    Attributes:
        opened: how many times a counting operator ran inside a training forward.
    """

    def __init__(self, forward: TrainingForward) -> None:
        self._forward = forward
        self.opened = 0
        self.number = next(_NUMBERS)
        _GATES[self.number] = self

    @property
    def is_open(self) -> bool:
        return self._forward.active


def count_ids(ids: Tensor, counts: Tensor, gate: Gate) -> None:
    """Add one per expert index to ``counts`` (int64 ``[experts]``) if the gate is open; never waits for the device."""
    torch.ops.areal_callbacks.count_ids(ids, counts, gate.number)


def count_mask(mask: Tensor, counts: Tensor, gate: Gate) -> None:
    """Add the nonzero elements of every column of ``[tokens, experts]`` to ``counts`` if the gate is open."""
    torch.ops.areal_callbacks.count_mask(mask, counts, gate.number)


def _add_ids(ids: Tensor, counts: Tensor) -> None:
    flat = ids.reshape(-1).to(counts.device, torch.int64, non_blocking=True)
    counts.scatter_add_(0, flat, torch.ones_like(flat))


def _add_mask(mask: Tensor, counts: Tensor) -> None:
    counts += (mask.reshape(-1, mask.shape[-1]) != 0).sum(0).to(counts.device, non_blocking=True)


def _gated(add: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor, int], None]:
    def body(assignments: Tensor, counts: Tensor, number: int) -> None:
        gate = _GATES.get(number)
        if gate is None or not gate.is_open:
            return
        gate.opened += 1
        try:
            add(assignments, counts)
        except Exception as error:  # noqa: BLE001 - inside the host's forward
            report_once("moe_balance:count", f"routed assignments could not be counted: {error!r}")

    return body


_LIBRARY.impl("count_ids", _gated(_add_ids), "CompositeExplicitAutograd")
_LIBRARY.impl("count_mask", _gated(_add_mask), "CompositeExplicitAutograd")
torch.library.register_fake("areal_callbacks::count_ids", lambda *_: None, lib=_LIBRARY)
torch.library.register_fake("areal_callbacks::count_mask", lambda *_: None, lib=_LIBRARY)
