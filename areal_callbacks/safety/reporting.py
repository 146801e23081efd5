"""Run-time troubles become one log message: observers never break training, and never flood its log."""

from __future__ import annotations

import contextlib
import logging
import sys

from areal_callbacks.safety.text import make_printable

logger = logging.getLogger("areal_callbacks")

_LONGEST = 2_000

_reported: dict[str, object] = {}


def report_once(key: str, message: str) -> bool:
    """Log ``message`` as a warning, at most once per ``key`` in this process; says whether it was logged.

    Of a long message the first 2,000 characters are logged, and none that a terminal obeys. Inside an ``except`` block
    the traceback follows at debug level.
    """
    mine = object()
    # setdefault is atomic, so there is no lock that a fork or a signal handler could find held.
    if _reported.setdefault(key, mine) is not mine:
        return False
    with contextlib.suppress(Exception):  # a handler of the host's may raise, and this is said inside its training
        logger.warning("%s", make_printable(message, _LONGEST))
        if sys.exc_info()[0] is not None:
            logger.debug("traceback of %r", key, exc_info=True)
    return True


def reset() -> None:
    """Forget what was reported; for tests."""
    _reported.clear()
