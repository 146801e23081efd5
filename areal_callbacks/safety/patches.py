"""The one reversible way to wrap an attribute of an instance or module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

_ABSENT = object()


class Patches:
    """Wraps callables in place and puts everything back with :meth:`undo`.

    A replacement that somebody else has wrapped again meanwhile cannot be taken out from below; it stays as a bare
    pass-through to the original then.
    """

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def wrap(self, owner: object, name: str, around: Callable[..., Any]) -> None:
        """Replace ``owner.name`` by a call of ``around(original, *args, **kwargs)``.

        Raises:
            AttributeError: the owner has no such attribute.
        """
        self._applied.append(_Patch(owner, name, around))

    def undo(self) -> None:
        """Restore every wrapped attribute, the last first. Calling it again does nothing."""
        while self._applied:
            self._applied.pop().undo()

    def __len__(self) -> int:
        return len(self._applied)


class _Patch:
    def __init__(self, owner: object, name: str, around: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        self._previous = vars(owner).get(name, _ABSENT)
        self._replacement = _Replacement(getattr(owner, name), around)
        setattr(owner, name, self._replacement)

    def undo(self) -> None:
        self._replacement.around = None
        if vars(self._owner).get(self._name) is not self._replacement:
            return
        if self._previous is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._previous)


class _Replacement:
    """What stands in the attribute's place. A copied or pickled owner gets its own bare original instead."""

    def __init__(self, original: Callable[..., Any], around: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.around: Callable[..., Any] | None = around
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.around is None:
            return self._original(*args, **kwargs)
        return self.around(self._original, *args, **kwargs)

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        """Bind like a function where the owner of the attribute is a class."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Callable[..., Any]]]:
        return _bare, (self._original,)


def _bare(original: Callable[..., Any]) -> Callable[..., Any]:
    return original
