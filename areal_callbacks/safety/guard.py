"""Observers never break training: what raises inside a guarded method is reported once and switched off."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from areal_callbacks.safety.reporting import report_once

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="Observer")


class Observer:
    """Something attached to a run that must not be able to harm it.

    Attributes:
        family: its name in exports and messages.
        failed: it raised at run time and no longer takes part.
    """

    family: str
    failed: bool = False

    def detach(self) -> None:
        """Undo every hook."""

    def fail(self, error: BaseException) -> None:
        """Report the error once, undo the hooks, stay silent from now on."""
        self.failed = True
        report_once(f"{self.family}:failed", f"{self.family} raised and is switched off: {error!r}")
        try:
            self.detach()
        except Exception as detaching:  # noqa: BLE001 - it may be broken in the same way
            report_once(f"{self.family}:detach", f"{self.family} could not undo its hooks: {detaching!r}")


def guarded(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R | None]:
    """Make a method of an :class:`Observer` unable to raise: it returns None after a failure, and from then on."""

    @functools.wraps(method)
    def guard(self: Self, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if self.failed:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is ours and not the host's
            self.fail(error)
            return None

    return cast("Callable[Concatenate[Self, P], R | None]", guard)
