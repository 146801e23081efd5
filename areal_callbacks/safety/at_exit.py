"""What is left to do when the interpreter exits: one handler, in one order, whatever was made first.

Trackers end their runs in handlers of their own, and nothing can open a run any more once the thread pools are shut
down. So ours has to come before both: what :mod:`threading` registers runs before everything in :mod:`atexit`, the last
registered first, and the pools register when they are imported, here.
"""

from __future__ import annotations

import atexit
import enum
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import process as _process  # noqa: F401 - see above
from concurrent.futures import thread as _thread  # noqa: F401 - see above
from typing import Any, NamedTuple, TypeVar

from areal_callbacks.safety.door import attempt

Owner = TypeVar("Owner")


class Order(enum.IntEnum):
    """Which tasks come first: what is flushed is written by what is closed later."""

    FLUSH = 0
    CLOSE = 1


class _Task(NamedTuple):
    order: Order
    act: Callable[[Any], object]
    process: int


_tasks: weakref.WeakKeyDictionary[Any, _Task] = weakref.WeakKeyDictionary()


def at_exit(owner: Owner, act: Callable[[Owner], object], order: Order) -> None:
    """Call ``act(owner)`` when the interpreter exits, unless the owner is gone or :func:`cancel` was called.

    The owner is not kept alive. In a forked child nothing happens: files, sockets and threads are the parent's.
    """
    _tasks[owner] = _Task(order, act, os.getpid())


def cancel(owner: object) -> None:
    """There is nothing left to do for the owner; again does nothing."""
    _tasks.pop(owner, None)


def _run_all() -> None:
    """Run until nothing is left: what is flushed may open something that has to be closed."""
    while waiting := list(_tasks.items()):
        owner, task = min(waiting, key=lambda item: item[1].order)
        cancel(owner)
        if task.process == os.getpid():
            attempt(f"exit:{id(owner)}", f"{type(owner).__name__} could not finish at exit", task.act, owner)


getattr(threading, "_register_atexit", atexit.register)(_run_all)
