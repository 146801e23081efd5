"""What users are told, where pytest's ``caplog`` does not reach: in other processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from areal_callbacks.safety import reporting


@contextmanager
def collect_messages() -> Iterator[list[str]]:
    """The warnings that are logged inside the block; what was reported before it is forgotten."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Collect()
    reporting.reset()
    reporting.logger.addHandler(handler)
    try:
        yield messages
    finally:
        reporting.logger.removeHandler(handler)
