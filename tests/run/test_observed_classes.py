"""Whoever inspects a class that is observed finds what it was before."""

from __future__ import annotations

import importlib
import inspect
import pickle
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from areal_callbacks.run.autoload import observe_frameworks, stop_observing

CLASSES = [
    ("transformers.trainer", "Trainer"),
    ("accelerate.accelerator", "Accelerator"),
    ("lightning.pytorch.trainer.trainer", "Trainer"),
    ("lightning.fabric.fabric", "Fabric"),
]


def look_at(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        types: Any = typing.get_type_hints(function)
    except NameError as error:  # names that the framework imports for type checkers only
        types = str(error)
    return {
        "kind": type(function),
        "signature": inspect.signature(function),
        "types": types,
        "source": inspect.getsource(function),
        "names": (function.__name__, function.__qualname__, function.__module__),
        "document": function.__doc__,
    }


@pytest.mark.parametrize(("module", "name"), CLASSES, ids=[f"{module}.{name}" for module, name in CLASSES])
def test_a_constructor_looks_as_before(module: str, name: str) -> None:
    cls = getattr(importlib.import_module(module), name)
    original = cls.__init__
    before = look_at(original)
    observe_frameworks()
    try:
        wrapped = cls.__init__
        assert wrapped is not original
        assert isinstance(wrapped, FunctionType)
        assert wrapped.__code__ is not None
        after = look_at(wrapped)
        assert pickle.loads(pickle.dumps(cls)) is cls
    finally:
        stop_observing()
    assert after == before
    assert cls.__init__ is original
