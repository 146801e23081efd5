"""Which phase the current coroutine or thread works for (AReaL: ``areal.infra.workflow_context``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_EVALUATING: ContextVar[bool] = ContextVar("areal_callbacks_evaluating", default=False)


def stat_scope() -> str:
    """The name of the tracker to record into: ``"rollout"``, or ``"eval-rollout"`` inside :func:`evaluation`."""
    return "eval-rollout" if _EVALUATING.get() else "rollout"


@contextlib.contextmanager
def evaluation() -> Iterator[None]:
    """Mark the block, and the tasks that are started in it, as evaluation."""
    previous = _EVALUATING.get()
    _EVALUATING.set(True)
    try:
        yield
    finally:
        _EVALUATING.set(previous)
