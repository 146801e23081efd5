"""The arguments of a call by their names, whatever they are wrapped in."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from areal_callbacks.monitors.compilation import uncompiled

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SINGLE = frozenset({Tensor, type(None), bool, int, float, str})
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Inputs(NamedTuple):
    """The arguments of one call.

    Attributes:
        named: by the names of the forward's parameters, and the entries of batches among them by their own names.
        listed: what stood in a list or tuple, or has no parameter, in that order.
    """

    named: dict[str, Any]
    listed: tuple[Any, ...] = ()


def may_hold_batch(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """An argument is more than a tensor or a number: a batch, which a callee may take apart."""
    return not (_SINGLE.issuperset(map(type, kwargs.values())) and _SINGLE.issuperset(map(type, args)))


def name_inputs(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
    """See :func:`read_inputs`; for arguments of which none is a batch."""
    if not args:
        return Inputs(dict(kwargs))
    return Inputs({**dict(zip(names, args)), **kwargs}, tuple(args[len(names) :]))


def read_inputs(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
    """Copy the arguments, so that what a callee takes out of a batch stays known.

    Args:
        names: of the positional parameters.
        args: positional arguments; mappings, dataclasses, named tuples, lists and tuples are batches.
        kwargs: arguments by keyword.
    """
    named, listed = dict(zip(names, args)), list(args[len(names) :])
    named.update(kwargs)
    for batch in (*named.values(), *args[len(names) :]):
        fields = None if type(batch) in _SINGLE else _fields(batch)
        if fields is not None:
            named |= {name: value for name, value in fields.items() if named.get(name, batch) is batch}
        elif isinstance(batch, list | tuple):
            listed += batch
    return Inputs(named, tuple(listed))


def _fields(batch: Any) -> Mapping[str, Any] | None:
    if isinstance(batch, Mapping):
        return {str(name): value for name, value in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(zip(batch._fields, batch)) if isinstance(batch, tuple) and hasattr(batch, "_fields") else None


def read_running(module: nn.Module) -> dict[str, Any]:
    """The arguments of the ``forward`` of a module that runs on Python's stack, as they are by now; empty if none does.

    For one that the loop does not call through the module, so that no hook is given them.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is module:
            return _read_arguments(code, frame.f_locals)
        frame = frame.f_back
    return {}


def _read_arguments(code: CodeType, values: Mapping[str, Any]) -> dict[str, Any]:
    count = code.co_argcount + code.co_kwonlyargcount
    more = [name for name in code.co_varnames[count : count + 2] if isinstance(values.get(name), dict)]
    return {name: values[name] for name in (*code.co_varnames[1:count], *more) if name in values}


def positional_names(module: nn.Module, method: str = "forward") -> tuple[str, ...]:
    """The parameters of its forward that may be given by position; of what was compiled, for a compiled module."""
    return tuple(name for name, kind in _parameters(module, method) if kind in _POSITIONAL)


def has_parameter(module: nn.Module, names: frozenset[str]) -> bool:
    """Its forward names one of these."""
    return any(name in names for name, _ in _parameters(module, "forward"))


def _parameters(module: nn.Module, method: str) -> Iterator[tuple[str, Any]]:
    return iter(_signature(getattr(type(uncompiled(module)), method)))


@functools.lru_cache(maxsize=4096)
def _signature(function: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # TorchScript's forward has none
        return ()
    return tuple((parameter.name, parameter.kind) for parameter in parameters if parameter.kind not in _VARIADIC)
