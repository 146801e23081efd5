"""The calls of modules that are running, with their arguments by name, read from Python's stack."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from areal_callbacks.verify.gradient_state import list_frames

_MODULE_CALL = nn.Module._call_impl.__code__


class ModuleCall(NamedTuple):
    """A running call of a module: ``arguments`` hold every named value, also those inside mappings and records."""

    module: nn.Module | None
    arguments: dict[str, Any]
    parameters: frozenset[str]


def list_calls() -> list[ModuleCall]:
    """The calls of modules on this thread's stack, the innermost first, as far as the nearest backward."""
    calls: list[ModuleCall] = []
    for frame in list_frames():
        call = _read(frame)
        if call is None:
            continue
        if frame.f_code is _MODULE_CALL and calls and calls[-1].module is call.module:
            calls[-1] = call  # the call's own arguments, which the body of forward() may have assigned anew
        elif not (calls and calls[-1].module is call.module):
            calls.append(call)
    return calls


def bind(module: nn.Module, args: Iterable[Any], kwargs: Mapping[str, Any]) -> ModuleCall:
    """The arguments of a call of a module's ``forward``, by name."""
    names = _parameters(module)
    positional = dict(zip(names, args))
    return ModuleCall(module, dict(name_values({**positional, **kwargs})), frozenset(names))


def name_values(values: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Every named value in mappings, dataclasses, named tuples and objects with attributes, the outer ones first."""
    fields = _fields(values)
    yield from fields.items()
    if depth:
        for value in fields.values():
            if not isinstance(value, Tensor | str | nn.Module):
                yield from ((name, inner) for name, inner in name_values(value, depth - 1) if name not in fields)


def _fields(values: Any) -> dict[str, Any]:
    if isinstance(values, Mapping):
        return {name: value for name, value in values.items() if isinstance(name, str)}
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    if isinstance(values, tuple | list):
        names = getattr(values, "_fields", None) or [f"[{index}]" for index in range(len(values))]
        return dict(zip(names, values))
    return {}


def _read(frame: FrameType) -> ModuleCall | None:
    code = frame.f_code
    if code is _MODULE_CALL:
        values = frame.f_locals
        return bind(values["self"], values["args"], values["kwargs"])
    if code.co_name != "forward" or code.co_varnames[:1] != ("self",):
        return None
    values = frame.f_locals
    if not isinstance(values.get("self"), nn.Module):
        return None
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[
        1 : count + bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    ]
    own = {name: values[name] for name in names if name in values}
    return ModuleCall(values["self"], dict(name_values(own)), frozenset(_parameters(values["self"])))


def _parameters(module: nn.Module) -> list[str]:
    """The names of ``forward``'s parameters, without ``*args`` and ``**kwargs``."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind in kinds]
