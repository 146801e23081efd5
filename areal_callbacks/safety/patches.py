"""The one reversible way to stand around a method or function of the host."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

from areal_callbacks.safety.door import Around, Call, attempt, pass_through
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

_ABSENT = object()


class Patches:
    """Wraps methods and functions in place and puts everything back with :meth:`undo`.

    What replaces a bound method is a bound method of the same object, and what replaces a function is a function, with
    the name, signature and attributes of the original: whoever inspects it, binds it again (``__func__``) or wraps it
    finds what was there before, and comes through the wrap. Deep copies and pickles of the owner have the original.

    A replacement that other code has wrapped meanwhile cannot be taken out from below; it stays as a bare
    pass-through to the original then.

    Args:
        observer: whose wraps they are, for messages.
        failed: told the exception of an ``around`` that raises; by default it is reported once.
    """

    def __init__(self, observer: str, failed: Callable[[BaseException], None] | None = None) -> None:
        self._observer = observer
        self._failed = failed
        self._applied: list[_Wrap] = []

    def wrap(self, owner: object, name: str, around: Around) -> None:
        """Run ``around`` around every call of ``owner.name``.

        An ``around`` that raises is taken out; the other wraps stay. Of a coroutine or generator function it surrounds
        the call that makes the coroutine or generator, not what runs in it later.

        Args:
            owner: an instance, a class or a module.
            name: of a method or function.
            around: see :data:`~areal_callbacks.safety.door.Around`; for a class, its first argument is the instance
                (the class, if the method is a class method; there is none before those of a static method).

        Raises:
            AttributeError: the owner has no such attribute, or takes none.
        """
        self._applied.append(_Wrap(owner, name, around, self._failed or functools.partial(self._report, name)))

    def undo(self) -> None:
        """Restore every wrapped attribute, the last first. Calling it again does nothing."""
        while self._applied:
            wrap = self._applied.pop()
            attempt(f"{self._observer}:undo", f"{self._observer} could not take off a wrap", wrap.undo)

    def __len__(self) -> int:
        return len(self._applied)

    def _report(self, name: str, error: BaseException) -> None:
        problem = f"{self._observer} raised around {name}(), which it leaves alone from now on"
        report_once(f"{self._observer}:{name}", f"{problem}: {tell_error(error)}")


_WRAPS: weakref.WeakKeyDictionary[Callable[..., Any], weakref.ref[_Wrap]] = weakref.WeakKeyDictionary()


class _Wrap:
    """One replaced attribute."""

    def __init__(self, owner: object, name: str, around: Around, failed: Callable[[BaseException], None]) -> None:
        self._owner: object = owner
        self._bound_to: object = None
        self._name = name
        self._previous = vars(owner).get(name, _ABSENT)
        self._around: Around | None = around
        self._failed = failed
        self._replacement: Any = self._make(owner, name)
        setattr(owner, name, self._replacement)

    def undo(self) -> None:
        owner, replacement, previous = self._owner, self._replacement, self._previous
        self._owner = self._bound_to = self._around = self._replacement = None
        if vars(owner).get(self._name) is not replacement:
            return
        while (below := _wrap_of(previous)) is not None and below._around is None:
            previous = below._previous
        if previous is _ABSENT:
            delattr(owner, self._name)
        else:
            setattr(owner, self._name, previous)

    def _make(self, owner: object, name: str) -> Any:
        inner = inspect.getattr_static(owner, name, None) if isinstance(owner, type) else None
        if isinstance(inner, staticmethod | classmethod):
            function = _make_resemble(inner.__func__, self._function(inner.__func__))
            return type(inner)(self._register(function))
        return self._replace(getattr(owner, name))

    def _replace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        if not isinstance(original, MethodType):
            return self._register(_make_resemble(original, _of_kind(original, self._function(original))))
        self._bound_to = original.__self__
        inner = original.__func__
        method = self._register(_make_resemble(inner, _of_kind(inner, self._method(inner))))
        method.__name__ = self._name  # a bound method is pickled by name
        return MethodType(method, original.__self__)

    def _register(self, function: FunctionType) -> FunctionType:
        _WRAPS[function] = weakref.ref(self)
        return function

    def _method(self, original: Callable[..., Any]) -> FunctionType:
        def method(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if owner is not self._bound_to:  # a copy of the owner, or after the end
                return original(owner, *args, **kwargs)
            return self._call(functools.partial(original, owner), args, kwargs)

        return cast("FunctionType", method)

    def _function(self, original: Callable[..., Any]) -> FunctionType:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(original, args, kwargs)

        return cast("FunctionType", function)

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._around is None:
            return original(*args, **kwargs)
        return pass_through(self._around, original, Call(args, kwargs), self._fail)

    def _fail(self, error: BaseException) -> None:
        self._around = None
        self._failed(error)


def _wrap_of(value: Any) -> _Wrap | None:
    function = getattr(value, "__func__", value)
    found = _WRAPS.get(function) if isinstance(function, FunctionType) else None
    return None if found is None else found()


def _of_kind(original: Callable[..., Any], call: FunctionType) -> FunctionType:
    """``call`` as a coroutine or generator function if the original is one, for hosts that ask."""

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Any:
        return (yield from call(*args, **kwargs))

    if inspect.iscoroutinefunction(original):
        return cast("FunctionType", coroutine)
    return cast("FunctionType", generator) if inspect.isgeneratorfunction(original) else call


def _make_resemble(original: Any, function: FunctionType) -> FunctionType:
    """``function`` with everything by which others inspect ``original``.

    ``__wrapped__`` of a decorated original is handed on as it is: readers that follow one link of the chain find the
    same function as before. An undecorated one tells its signature to readers that follow no link, too.
    """
    functools.update_wrapper(function, original)
    if hasattr(original, "__wrapped__"):
        function.__wrapped__ = original.__wrapped__  # type: ignore[attr-defined]
    else:
        with contextlib.suppress(ValueError, TypeError):  # a builtin may have no signature
            function.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return function
