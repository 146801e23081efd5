"""Hooks that stay behind when the module that carries them is copied or saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ModuleHook:
    """A forward hook on a module of the host, who may deep-copy it (a reference model) or pickle it whole.

    The copy's hook does nothing: what hangs on the original, open files among it, is neither copied nor counted twice.
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._function is None else self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[type[ModuleHook], tuple[()]]:
        return ModuleHook, ()
