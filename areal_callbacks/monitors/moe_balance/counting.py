"""The operators that add routed assignments to a counter, exact in eager and compiled code.

Whether a forward counts is known only at run time, while compiled code is traced once. So the decision lies in the
*body* of an operator, which tracing does not look into: it reads the flag of the forward that runs now.

No operator waits for the device or can fail on it: an index that is no expert falls into a cell beside the experts.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from areal_callbacks.monitors.captured import is_exporting
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.door import attempt

LIBRARY: Any = torch.library.Library("areal_callbacks", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("count_routed(Tensor routed, Tensor(a!) counts, int switch) -> ()")

_SWITCHES: weakref.WeakValueDictionary[int, CountingSwitch] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
_ones: dict[int, Tensor] = {}
_one: dict[torch.device, Tensor] = {}
_KEPT_LENGTHS = 16


class CountingSwitch:
    """Is on while a training forward runs; its number is a constant in compiled code."""

    def __init__(self, forward: TrainingForward) -> None:
        self._forward = forward
        self.number = next(_NUMBERS)
        _SWITCHES[self.number] = self

    @property
    def is_on(self) -> bool:
        return self._forward.active


class Counter:
    """The assignments of one router, on whatever device its choices arrive.

    Each device has its own int64 ``[experts + 2]``: the experts stand between a cell for tokens that are not routed
    (negative indices) and one for indices that are no expert. A tensor of its own, not a row of a common one: compiled
    code handles mutated inputs that share their memory by copying them.

    Attributes:
        size: cells on each device.
        home: the tensor on the device where the router is expected to run; what compiled code uses.
        inner: a view of its experts.
    """

    def __init__(self, experts: int, device: torch.device) -> None:
        self.experts, self.size = experts, experts + 2
        self.home = _cells(experts, device)
        self.inner = self.home.narrow(0, 1, experts)
        self._away: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The cells on another device than home (offloading, a model that was moved): nothing crosses devices."""
        if device not in self._away:
            self._away[device] = _cells(self.experts, device)
        return self._away[device]

    @property
    def cells(self) -> list[Tensor]:
        """The tensors of all devices."""
        return [self.home, *self._away.values()]


def count(routed: Tensor, counter: Counter, switch: int) -> None:
    """Add a router's choice to its counter if the switch with this number is on.

    Args:
        routed: integer expert indices of any shape, or a mask or scores ``[..., experts]``, nonzero where chosen.
        counter: of that router.
        switch: a :attr:`CountingSwitch.number`.
    """
    counts = counter.home
    if routed.device != counts.device:
        if torch.compiler.is_compiling():
            routed = routed.to(counts.device)
        else:
            counts = counter.on(routed.device)
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        if not is_exporting():
            torch.ops.areal_callbacks.count_routed(routed, counts, switch)
    else:  # an operator call costs half as much as its body, and nothing intercepts operators here
        _count_routed(routed, counts, switch, *((counter.inner,) if counts is counter.home else ()))


class Counts(Protocol):
    """What counts are taken from."""

    @property
    def size(self) -> int:
        """Cells on each device."""

    @property
    def cells(self) -> list[Tensor]:
        """int64 ``[size]``, one for each device."""


def take(counters: Sequence[Counts]) -> list[Tensor]:
    """The cells of every counter on the CPU, and start over: one copy for each device."""
    taken = [torch.zeros(counter.size, dtype=torch.int64, device="cpu") for counter in counters]
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for index, counter in enumerate(counters):
        for cells in counter.cells:
            by_device.setdefault(cells.device, []).append((index, cells))
    for entries in by_device.values():
        tensors = [cells for _, cells in entries]
        parts = torch.split(torch.cat(tensors).cpu(), [len(cells) for cells in tensors])
        torch._foreach_zero_(tensors)
        for (index, _), part in zip(entries, parts):
            taken[index] += part
    return taken


def counting_ones(device: torch.device) -> Tensor:
    """``[1]``, to be expanded; kept since a counter was made, so that it is in no memory pool of a CUDA graph."""
    one = _one.get(device)
    if one is None:
        with torch.inference_mode(False):
            one = torch.ones(1, dtype=torch.int64, device=device)
        if not torch._C._len_torch_dispatch_stack():  # else it may be a fake one
            _one[device] = one
    return one


def _cells(experts: int, device: torch.device) -> Tensor:
    counting_ones(device)
    with torch.inference_mode(False):
        return torch.zeros(experts + 2, dtype=torch.int64, device=device)


def add_routed(routed: Tensor, counts: Tensor, inner: Tensor | None = None) -> None:
    """Add indices or a mask to ``counts`` (int64 ``[experts + 2]``), of which ``inner`` is the view of the experts."""
    dtype = routed.dtype  # reading an attribute of a tensor costs, between the operations of a model
    if dtype == torch.bool or dtype.is_floating_point:
        marks = routed.reshape(-1, routed.shape[-1])
        chosen = (marks if dtype == torch.bool else marks != 0).sum(0)
        width = min(chosen.numel(), counts.numel() - 1)
        counts.narrow(0, 1, width).add_(chosen.narrow(0, 0, width))
    else:
        ids = routed.reshape(-1) if dtype == torch.int64 else routed.reshape(-1).long()
        if counts.is_cpu:
            _add_checked(ids, counts, counts.narrow(0, 1, counts.numel() - 2) if inner is None else inner)
        else:
            add_clamped(ids, counts)


def add_clamped(ids: Tensor, counts: Tensor) -> None:
    """Add int64 indices of any value to ``counts``: an accelerator would abort on one that is out of range."""
    counts.scatter_add_(0, (ids + 1).clamp_(0, counts.numel() - 1), counting_ones(ids.device).expand_as(ids))


def _add_checked(ids: Tensor, counts: Tensor, inner: Tensor) -> None:
    """The same in two thirds of the time, where an index out of range is an exception."""
    before = counts.clone()
    try:
        inner.scatter_add_(0, ids, _ones_like(ids))
    except RuntimeError:
        add_clamped(ids, counts.copy_(before))  # some were added before the exception


def _ones_like(ids: Tensor) -> Tensor:
    """Ones to scatter, kept by length: making them costs a quarter of the count. Not on an accelerator, where a kept
    tensor could lie in the memory pool of a CUDA graph."""
    ones = _ones.get(len(ids))
    if ones is None:
        if len(_ones) >= _KEPT_LENGTHS:
            _ones.clear()
        with torch.inference_mode(False):
            ones = _ones[len(ids)] = torch.ones(len(ids), dtype=torch.int64, device="cpu")
    return ones


def run_when_on(number: int, add: Callable[..., None], *arguments: Any) -> None:
    """Call ``add`` if the switch with this number is on; for the bodies of operators."""
    switch = _SWITCHES.get(number)
    if switch is not None and switch.is_on:
        attempt("moe_balance:count", "routed assignments could not be counted", add, *arguments)


def _count_routed(routed: Tensor, counts: Tensor, number: int, *more: Any) -> None:
    run_when_on(number, add_routed, routed, counts, *more)


LIBRARY.impl("count_routed", _count_routed, "CompositeExplicitAutograd")
torch.library.register_fake("areal_callbacks::count_routed", lambda *_: None, lib=LIBRARY)
