"""Exceptions of the host's signal handlers, which Python runs in the middle of whatever the main thread is doing."""

from __future__ import annotations

import functools
import signal
import threading
from types import CodeType, TracebackType
from typing import Any


def hand_on(error: BaseException) -> None:
    """Raise ``error`` again if a signal handler raised it: a time limit or a preemption that arrived in our code.

    For ``except`` blocks that keep exceptions of ours from the host.
    """
    if _is_of_handler(error):
        raise error


def _is_of_handler(error: BaseException) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """What runs when a handler is called: a function, a method, a partial, or an object that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):  # signal.SIG_DFL, or none of Python's
        return None
    code: CodeType | None = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code or getattr(type(handler).__call__, "__code__", None)
