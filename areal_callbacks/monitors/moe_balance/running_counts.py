"""Modules that count for themselves in a buffer, which grows with every forward or holds the last forward's counts.

Which of the two a buffer does shows in its values: counts that only grow never fall within a forward, and change in a
forward that was given tokens. Both readings are added up until one of them is out of the question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.monitors.captured import is_exporting
from areal_callbacks.monitors.moe_balance.counting import LIBRARY, Counter, run_when_on

LIBRARY.define("keep_totals(Tensor totals, Tensor(a!) before) -> ()")
LIBRARY.define(
    "count_totals(Tensor totals, Tensor before, Tensor(a!) grown, Tensor(b!) last, int switch, bool complete) -> ()"
)


class RunningCounts:
    """What the buffer of one module adds up to, read in both ways.

    Args:
        experts: length of the buffer.
        device: where the module runs.

    Attributes:
        grown: the growth of the buffer over all training forwards.
        last: the sum of what it held after each. Its first cell counts the forwards after which it cannot be growth.
    """

    def __init__(self, experts: int, device: torch.device) -> None:
        self.grown, self.last, self._before = (Counter(experts, device) for _ in range(3))

    @property
    def counters(self) -> list[Counter]:
        """Those to take at an export: ``grown``, ``last``."""
        return [self.grown, self.last]

    def begin(self, totals: Tensor) -> None:
        """A forward of the module begins, whether it counts or not; ``totals`` is its buffer ``[experts]``."""
        totals, before = _bring_together(totals, self._before)
        if not is_exporting():
            torch.ops.areal_callbacks.keep_totals(totals, before)

    def end(self, totals: Tensor, switch: int, *, complete: bool) -> None:
        """It has ended; ``complete`` says that it was given tokens and has not raised."""
        totals, before = _bring_together(totals, self._before)
        grown, last = (_bring_together(totals, counter)[1] for counter in self.counters)
        if not is_exporting():
            torch.ops.areal_callbacks.count_totals(totals, before, grown, last, switch, complete)


def choose_reading(grown: Tensor, last: Tensor, *, holds_last: bool) -> tuple[Tensor, bool]:
    """The cells that are the counts, int64 ``[experts + 2]``, and whether the buffer holds the last forward's.

    Args:
        grown: taken from :attr:`RunningCounts.grown`.
        last: taken from :attr:`RunningCounts.last`.
        holds_last: what is known from before.
    """
    holds_last = holds_last or bool(last[0])
    if not holds_last:
        return grown, False
    cells = last.clone()
    cells[0] = 0
    return cells, True


def _bring_together(totals: Tensor, counter: Counter) -> tuple[Tensor, Tensor]:
    if totals.device == counter.home.device:
        return totals, counter.home
    if torch.compiler.is_compiling():
        return totals.to(counter.home.device), counter.home
    return totals, counter.on(totals.device)


def _inner(cells: Tensor) -> Tensor:
    return cells.narrow(0, 1, cells.numel() - 2)


def _keep_totals(totals: Tensor, before: Tensor) -> None:
    _inner(before).zero_().add_(totals.reshape(-1).to(before.dtype))


def _count_totals(totals: Tensor, before: Tensor, grown: Tensor, last: Tensor, complete: bool) -> None:
    now = totals.reshape(-1).to(before.dtype)
    growth = now - _inner(before)
    has_changed = (growth != 0).any()
    has_fallen = (growth < 0).any()
    _inner(grown).add_(growth)
    _inner(last).add_(now if complete else now * has_changed)
    is_no_growth = has_fallen | ((now != 0).any() & (growth == 0).all()) if complete else has_fallen
    last.narrow(0, 0, 1).add_(is_no_growth.to(last.dtype))


def _implement(name: str, body: Callable[..., Any]) -> None:
    LIBRARY.impl(name, body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"areal_callbacks::{name}", lambda *_: None, lib=LIBRARY)


def _run_count(totals: Tensor, before: Tensor, grown: Tensor, last: Tensor, switch: int, complete: bool) -> None:
    run_when_on(switch, _count_totals, totals, before, grown, last, complete)


_implement("keep_totals", _keep_totals)
_implement("count_totals", _run_count)
