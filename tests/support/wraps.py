"""Which methods of an object are wrapped, told by the code that runs first when they are called."""

from __future__ import annotations

import inspect
from typing import Any

from areal_callbacks.safety import patches


def find_wraps(owner: Any) -> set[str]:
    """On the object or on its class."""
    return {name for name in {*dir(type(owner)), *vars(owner)} if _is_wrap(inspect.getattr_static(owner, name, None))}


def _is_wrap(value: Any) -> bool:
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return getattr(code, "co_filename", None) == patches.__file__
