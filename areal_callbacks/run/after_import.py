"""Calls a function with a module right after its first import."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that stays first among the finders until the module was imported.

    Args:
        name: of the module.
        observe: called with it; must not raise.
    """

    def __init__(self, name: str, observe: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._observe = observe
        self._is_searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:  # of the time before PEP 451
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._observe(module)

        with suppress(AttributeError):  # a loader that takes no attribute is left alone
            loader.exec_module = exec_module
