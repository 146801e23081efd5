"""References to objects of the host that do not keep them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def refer_weakly(target: T) -> Callable[[], T | None]:
    """What returns the object as long as it lives; one that takes no weak reference is kept."""
    try:
        return weakref.ref(target)
    except TypeError:
        return lambda: target
