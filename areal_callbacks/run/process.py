"""Runs a command in the place of this process: its streams, the signals that it gets, and how it ends."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def run_command(words: Sequence[str]) -> int:
    """Run a command to its end and hand on the signals that this process gets.

    A terminal sends its signals to the command, too, so that these are not handed on.

    Returns:
        Its exit code, or minus the number of the signal that ended it.

    Raises:
        OSError: it cannot be started.
    """
    waited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = subprocess.Popen(words, preexec_fn=partial(_begin, before, _find_prctl()))
        while (code := child.poll()) is None:
            got = signal.sigwaitinfo(waited)
            if got.si_signo != signal.SIGCHLD and got.si_code <= 0:  # sent by a process
                child.send_signal(got.si_signo)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_like(code: int) -> NoReturn:
    """End this process as a command ended: with its code, or by its signal."""
    if code < 0:
        resource.setrlimit(
            resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
        )  # it has left its own
        with suppress(OSError):  # SIGKILL takes no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _find_prctl() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "prctl", None)


def _begin(mask: set[int | signal.Signals], prctl: Callable[..., int] | None) -> None:
    """In the child: the signals as they were, and no life of its own if this process is killed."""
    if prctl is not None:
        prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
