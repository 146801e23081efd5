"""Hooks on modules and optimizers of the host."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from areal_callbacks.safety.door import Around, Observer, attempt
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.signals import hand_on


class Hook:
    """A function of an observer that torch calls; it can neither raise nor change what it is given.

    The host may deep-copy the module that carries it (a reference model) or pickle it whole: the copy's hook does
    nothing, so that what hangs on the original, open files among it, is neither copied nor counted twice.

    Args:
        observer: is switched off if the function raises.
        function: its return value is ignored.
    """

    __slots__ = ("_function", "_observer")

    def __init__(self, observer: Observer | None = None, function: Callable[..., Any] | None = None) -> None:
        self._observer = observer
        self._function = function

    def __call__(self, *args: Any) -> None:
        observer, function = self._observer, self._function
        if observer is None or function is None or observer.failed:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - it is ours and not the host's
            hand_on(error)
            observer.fail(error)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


class Attachments:
    """Everything that an observer has attached to the host's objects: hooks and wraps, undone together.

    If one of them cannot be attached, those before it are taken off again.

    Args:
        observer: whose they are.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._handles: list[RemovableHandle] = []
        self._patches = Patches(observer.family, failed=observer.fail)

    def hook(self, register: Callable[..., RemovableHandle], function: Callable[..., Any], **options: Any) -> None:
        """Hand a guarded ``function`` to one of torch's ``register_…_hook`` methods."""
        if isinstance(getattr(register, "__self__", None), nn.Module):
            _hidden_hooks.add(self)
        with self._undone_if_it_raises():
            self._handles.append(register(Hook(self._observer, function), **options))

    def wrap(self, owner: object, name: str, around: Around) -> None:
        """See :meth:`Patches.wrap`."""
        with self._undone_if_it_raises():
            self._patches.wrap(owner, name, around)

    @contextlib.contextmanager
    def _undone_if_it_raises(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Take everything off. Calling it again does nothing."""
        while self._handles:
            handle = self._handles.pop()
            attempt(f"{self._observer.family}:undo", f"{self._observer.family} could not remove a hook", handle.remove)
        self._patches.undo()
        _hidden_hooks.discard(self)


class _HiddenHooks:
    """Keeps our hooks from ``torch.jit.script``, which compiles the hooks of a module: ours are no TorchScript.

    One wrap for all attachments of the process: a wrap for each would nest as deep as a model has routers.
    """

    def __init__(self) -> None:
        self._attached: weakref.WeakSet[Attachments] = weakref.WeakSet()
        self._patches = Patches("scripting")

    def add(self, attachments: Attachments) -> None:
        self._attached.add(attachments)
        recursive = getattr(torch.jit, "_recursive", None)
        if not len(self._patches) and hasattr(recursive, "get_hook_stubs"):
            self._patches.wrap(recursive, "get_hook_stubs", _without_hooks)

    def discard(self, attachments: Attachments) -> None:
        self._attached.discard(attachments)
        if not self._attached:
            self._patches.undo()


_hidden_hooks = _HiddenHooks()


def _without_hooks(nn_module: nn.Module) -> Generator[None]:
    hooks = [nn_module._forward_hooks, nn_module._forward_pre_hooks]
    before = [dict(each) for each in hooks]
    for each in hooks:
        for number in [number for number, hook in each.items() if isinstance(hook, Hook)]:
            del each[number]
    try:
        yield
    finally:
        for each, all_hooks in zip(hooks, before):
            each.clear()
            each.update(all_hooks)
