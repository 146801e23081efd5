"""Plants an exception into our functions wherever the door lets them run.

:func:`discover` lists what the door ran during a training: what stands around wrapped methods, hooks, guarded methods
and public entries. :class:`Planted` makes some of them raise.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple

import pytest

from areal_callbacks.safety import door, hooks, patches
from areal_callbacks.session import MetricsSession


class Planted(Exception):  # noqa: N818 - what is planted
    """Ours, and nobody else's."""


class Place(NamedTuple):
    """Where the door runs a function of ours.

    Attributes:
        kind: "wrap", "hook", "guarded" (of an observer) or "entry" (public).
        name: the function's qualified name; for a wrap also that of what it stands around.
    """

    kind: str
    name: str


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, shim: Callable[[Place, Callable[..., Any]], Any]) -> Iterator[None]:
    """Give ``shim`` every place and its function when the door is about to run it; it returns what runs instead."""
    original_pass, original_hook = door.pass_through, hooks.Hook.__init__

    def pass_through(around: Any, original: Any, call: Any, failed: Any) -> Any:
        return original_pass(
            shim(Place("wrap", f"{_name(around)} around {_name(original)}"), around), original, call, failed
        )

    def hook(self: hooks.Hook, observer: Any = None, function: Any = None) -> None:
        if function is not None:
            place, inner = Place("hook", _name(function)), function
            function = lambda *args, **kwargs: shim(place, inner)(*args, **kwargs)  # noqa: E731 - when it runs
        original_hook(self, observer, function)

    with monkeypatch.context() as patch:
        patch.setattr(patches, "pass_through", pass_through)
        patch.setattr(hooks.Hook, "__init__", hook)
        for owner, name, kind, decorate, inner in _guarded_methods():
            patch.setattr(owner, name, decorate(_shimmed(shim, Place(kind, inner.__qualname__), inner)))
        yield


def discover(monkeypatch: pytest.MonkeyPatch, train: Callable[[], object]) -> list[Place]:
    """What the door ran in a training, in the order of the first calls."""
    found: dict[Place, None] = {}

    def note(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
        found.setdefault(place)
        return function

    with watching(monkeypatch, note):
        train()
    return list(found)


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, places: set[Place], when: str) -> Iterator[None]:
    """Let the functions at ``places`` raise: "before" they do anything, or "after" they have done everything."""

    def shim(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
        if place not in places:
            return function
        return functools.partial((_raising_around if place.kind == "wrap" else _raising)[when], function)

    _raising_around = {"before": _raise_around, "after": _run_around_and_raise}
    _raising = {"before": _raise, "after": _run_and_raise}
    with watching(monkeypatch, shim):
        yield


def close_sessions() -> None:
    """What a planted fault has left open."""
    for session in [found for found in gc.get_objects() if issubclass(type(found), MetricsSession)]:
        session.close()


def _raise(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise Planted("planted")


def _run_and_raise(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    function(*args, **kwargs)
    raise Planted("planted")


def _raise_around(around: door.Around, *args: Any, **kwargs: Any) -> Generator[None]:
    raise Planted("planted")
    yield


def _run_around_and_raise(around: door.Around, *args: Any, **kwargs: Any) -> door.Steps:
    yield from around(*args, **kwargs)
    raise Planted("planted")


def _shimmed(shim: Callable[[Place, Any], Any], place: Place, inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def run(*args: Any, **kwargs: Any) -> Any:
        return shim(place, inner)(*args, **kwargs)

    return run


_DECORATORS: list[tuple[str, Callable[..., Any]]] = [
    ("guarded", door.guarded),
    ("entry", door.guarded_entry),
    ("entry", door.guarded_block),
]


def code_of(decorate: Callable[..., Any]) -> CodeType:
    """By which a method is known that a decorator of the door has made."""
    return decorate(lambda self: None).__code__


def is_guarded(method: Any) -> bool:
    """A method stands behind the door."""
    return getattr(method, "__code__", None) in [code_of(decorate) for _, decorate in _DECORATORS]


def _guarded_methods() -> Iterator[tuple[type, str, str, Callable[..., Any], Callable[..., Any]]]:
    """Class, attribute, kind, decorator and undecorated function of every method behind the door."""
    decorators = {code_of(decorate): (kind, decorate) for kind, decorate in _DECORATORS}
    for owner in _classes():
        for name, value in list(vars(owner).items()):
            kind, decorate = decorators.get(getattr(value, "__code__", None), (None, None))
            if kind is not None and decorate is not None:
                yield owner, name, kind, decorate, value.__wrapped__


def _classes() -> list[type]:
    """Of the modules that are loaded: a host's integration imports what it needs."""
    modules = [module for name, module in sys.modules.items() if name.startswith("areal_callbacks.")]
    found = (value for module in modules for value in vars(module).values() if isinstance(value, type))
    return list(dict.fromkeys(cls for cls in found if cls.__module__.startswith("areal_callbacks.")))


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", function))
