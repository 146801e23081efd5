"""Blocks that are taken out of the training time, and calls of the host that are counted in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from areal_callbacks.safety.patches import Patches


class Stopwatch(Protocol):
    """What spans are measured with."""

    @property
    def running(self) -> bool: ...

    def begin(self, *, trains: bool = True) -> None: ...

    def end(self) -> None: ...

    def may_end(self) -> None: ...

    def leave_gap(self) -> bool | None: ...

    def enter_gap(self) -> None: ...


@contextlib.contextmanager
def leave_out(stopwatch: Stopwatch, *, waits: bool = False) -> Iterator[None]:
    """An open span ends before the block, and another one begins after it.

    Args:
        stopwatch: of the training time.
        waits: the block waits for data; otherwise it belongs to no gap between two spans either.
    """
    was_running = stopwatch.running
    stopwatch.end()
    try:
        with contextlib.nullcontext() if waits else set_aside(stopwatch):
            yield
    finally:
        if was_running:
            stopwatch.begin()


@contextlib.contextmanager
def set_aside(stopwatch: Stopwatch) -> Iterator[None]:
    """A block between two spans is no part of the gap between them; inside a span nothing changes."""
    has_gap = stopwatch.leave_gap()
    try:
        yield
    finally:
        if has_gap:
            stopwatch.enter_gap()


class CountIn(contextlib.ContextDecorator):
    """The block is a span of its own, unless one is open; it goes on where the optimizer steps next."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._begins = False

    def __enter__(self) -> None:
        self._begins = not self._stopwatch.running
        if self._begins:
            self._stopwatch.begin(trains=False)

    def __exit__(self, *_: object) -> None:
        if self._begins:
            self._stopwatch.may_end()

    def _recreate_cm(self) -> CountIn:
        """One for each call of a decorated function, which may call itself."""
        return CountIn(self._stopwatch)


def _always(_: object) -> bool:
    return True


def include_calls(
    patches: Patches,
    owner: object,
    name: str,
    include: Callable[[], AbstractContextManager[None]],
    is_training: Callable[..., bool] = _always,
) -> None:
    """Count the time of every call of ``owner.name`` as training time: moving a batch, zeroing gradients.

    Args:
        patches: take the wrap off again.
        owner: an instance, a class or a module of the host.
        name: of its method or function.
        include: the session's ``included``.
        is_training: given the first argument of the call, says whether it belongs to training.
    """

    def around(*args: object, **_: object) -> Generator[None]:
        with include() if is_training(args[0] if args else None) else contextlib.nullcontext():
            yield

    patches.wrap(owner, name, around)
