"""The one reversible way to stand around a method or function of the host."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

from areal_callbacks.safety.door import Around, Call, attempt, pass_through
from areal_callbacks.safety.references import refer_weakly
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

_ABSENT = object()


class Patches:
    """Wraps methods and functions in place and puts everything back with :meth:`undo`.

    A method of one object is wrapped on the object's class, where the wrap finds its object again through a weak
    reference: the object itself stays as it was, and is freed, copied and pickled as without us. An attribute of that
    name of its own is replaced: a bound method by one that is bound to the same object, a function by a function. All
    have the name, signature and attributes of the original: whoever inspects it, binds it again (``__func__``) or wraps
    it finds what was there before, and comes through the wrap. Deep copies and pickles of the owner have the original.

    A replacement that other code has wrapped meanwhile cannot be taken out from below; it stays as a bare
    pass-through to the original then. What is wrapped does not keep this object alive; its end undoes all wraps.

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
        failed = self._failed or functools.partial(_report, self._observer, name)
        self._applied.append(_Wrap(owner, name, around, failed))

    def undo(self) -> None:
        """Restore every wrapped attribute, the last first. Calling it again does nothing."""
        while self._applied:
            wrap = self._applied.pop()
            attempt(f"{self._observer}:undo", f"{self._observer} could not take off a wrap", wrap.undo)

    def __len__(self) -> int:
        return len(self._applied)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.undo()


def _report(observer: str, name: str, error: BaseException) -> None:
    problem = f"{observer} raised around {name}(), which it leaves alone from now on"
    report_once(f"{observer}:{name}", f"{problem}: {tell_error(error)}")


class _Wrap:
    """One replaced attribute, as whoever replaced it knows it; what replaces it knows :class:`_Layer`."""

    def __init__(self, owner: object, name: str, around: Around, failed: Callable[[BaseException], None]) -> None:
        self.around: Around | None = around
        self._failed = failed
        self._name = name
        original = getattr(owner, name)
        is_of_class = _is_of_class(owner, name, original)
        place = type(owner) if is_of_class else owner
        layer = _Layer(self, place, name)
        self._place, self._layer = refer_weakly(place), weakref.ref(layer)
        setattr(place, name, layer.replace_for_one(original) if is_of_class else layer.replace(original))

    def undo(self) -> None:
        place, layer = self._place(), self._layer()
        self.around = None
        if place is None or layer is None:
            return
        above, found = None, _layer_of(vars(place).get(self._name))
        while found is not None and found is not layer:
            above, found = found, _layer_of(found.previous)
        if found is not None:
            layer.take_out(place, self._name, above)

    def fail(self, error: BaseException) -> None:
        self.around = None
        self._failed(error)


_LAYERS: weakref.WeakKeyDictionary[Callable[..., Any], weakref.ref[_Layer]] = weakref.WeakKeyDictionary()


class _Layer:
    """What stands between a replacement and the original; the replacement alone keeps it.

    Attributes:
        previous: what the place, an object, a class or a module, had of its own before.
        below: the function that is called next.
    """

    def __init__(self, wrap: _Wrap, place: object, name: str) -> None:
        self.previous = vars(place).get(name, _ABSENT)
        self.below: Callable[..., Any]
        self._wrap: Callable[[], _Wrap | None] = weakref.ref(wrap)
        self._place, self._name = refer_weakly(place), name
        self._bound_to: Callable[[], object] = _nothing

    def __reduce__(self) -> tuple[Callable[..., _Layer], tuple[Callable[..., Any]]]:
        return _pass_on, (self.below,)

    def replace_for_one(self, original: MethodType) -> Callable[..., Any]:
        """What replaces the function of a class, whose calls by one instance are wrapped."""
        return self._resemble(original.__func__, self._method(original))

    def replace(self, original: Callable[..., Any]) -> object:
        """What replaces an attribute of the place, whoever calls it."""
        place = self._place()
        inner = inspect.getattr_static(place, self._name, None) if isinstance(place, type) else None
        if isinstance(inner, staticmethod | classmethod):
            return type(inner)(self._resemble(inner.__func__, self._function()))
        if not isinstance(original, MethodType):
            return self._resemble(original, self._function())
        method = self._resemble(original.__func__, self._method(original))
        method.__name__ = self._name  # a bound method is pickled by name
        return MethodType(method, original.__self__)

    def take_out(self, place: object, name: str, above: _Layer | None) -> None:
        """Go on without this one: the layer above it calls what is below it; of the topmost one nothing is left."""
        previous = self.previous
        while (lower := _layer_of(previous)) is not None and lower._is_bare:
            previous = lower.previous
        if above is not None:
            above.previous, above.below = self.previous, self.below
        elif previous is _ABSENT:
            delattr(place, name)
        else:
            setattr(place, name, previous)

    @property
    def _is_bare(self) -> bool:
        wrap = self._wrap()
        return wrap is None or wrap.around is None

    def _resemble(self, original: Callable[..., Any], function: FunctionType) -> FunctionType:
        self.below = original
        replacement = _make_resemble(original, _of_kind(original, function))
        _LAYERS[replacement] = weakref.ref(self)
        return replacement

    def _method(self, original: MethodType) -> FunctionType:
        self._bound_to = refer_weakly(original.__self__)

        def method(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if owner is not self._bound_to():  # another instance of the class, or a copy of the owner
                return self._find_for(owner)(*args, **kwargs)
            return self._call(functools.partial(self.below, owner), args, kwargs)

        return cast("FunctionType", method)

    def _find_for(self, other: Any) -> Callable[..., Any]:
        """What another instance inherits may have been replaced since."""
        place = self._place()
        if isinstance(place, type) and self.previous is _ABSENT:
            return cast("Callable[..., Any]", getattr(super(place, other), self._name))
        return functools.partial(self.below, other)

    def _function(self) -> FunctionType:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(self.below, args, kwargs)

        return cast("FunctionType", function)

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wrap = self._wrap()
        if wrap is None or wrap.around is None:
            return original(*args, **kwargs)
        return pass_through(wrap.around, original, Call(args, kwargs), wrap.fail)


def _nothing() -> None:
    """A reference whose object is gone."""


def _pass_on(below: Callable[..., Any]) -> _Layer:
    """The copy of a layer, where a function is pickled by value: it calls what is below it, and nothing around that."""
    layer = object.__new__(_Layer)
    layer.previous, layer.below = _ABSENT, below
    layer._wrap = layer._place = layer._bound_to = _nothing
    return layer


def _is_of_class(owner: object, name: str, original: Any) -> bool:
    """The method of an object is what its class has under that name."""
    if isinstance(owner, type) or name in vars(owner) or not isinstance(original, MethodType):
        return False
    function = inspect.getattr_static(type(owner), name, None)
    return original.__self__ is owner and function is original.__func__ and type(owner).__weakrefoffset__ != 0


def _layer_of(value: Any) -> _Layer | None:
    function = getattr(value, "__func__", value)
    found = _LAYERS.get(function) if isinstance(function, FunctionType) else None
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
