"""The real steps of an optimizer, each once, through torch's own step hooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments


class OptimizerSteps(Observer):
    """Calls ``begin`` and ``end`` around every step that an optimizer really makes.

    A class whose ``step`` calls its parent's ``step`` fires torch's hooks for both; only the outer one is a step. A
    step that raises fires no hook at its end.

    Args:
        optimizer: a torch optimizer, or a host's wrapper with the optimizer as its ``optimizer``.
        begin: None where the host tells the beginning better.
        end: the parameters have been updated.
    """

    family = "optimizer steps"

    def __init__(self, optimizer: Optimizer, begin: Callable[[], None] | None, end: Callable[[], None]) -> None:
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner
        self._begin, self._end = begin, end
        self._depth = 0
        self._attachments = Attachments(self)
        self._attachments.hook(optimizer.register_step_pre_hook, self._before)
        self._attachments.hook(optimizer.register_step_post_hook, self._after)

    def detach(self) -> None:
        self._attachments.undo()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._depth and not _is_stepping(optimizer):
            self._depth = 0
        self._depth += 1
        if self._depth == 1 and self._begin is not None:
            self._begin()

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._end()


def list_optimizers(given: Any) -> Iterable[Optimizer]:
    """None, one or several as several; what is neither torch's nor iterable is one."""
    if given is None:
        return ()
    return given if isinstance(given, Iterable) and not isinstance(given, Optimizer) else (given,)


def _is_stepping(optimizer: Optimizer) -> bool:
    """A step of this optimizer encloses the one that begins now: torch's wrapper of ``step`` is on the stack twice."""
    wrapper, found = Optimizer.profile_hook_step(lambda: None).__code__, 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and found < 2:
        found += frame.f_code is wrapper and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return found == 2
