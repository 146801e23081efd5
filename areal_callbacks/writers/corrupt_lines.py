"""Lines of metrics.jsonl that are no records: the exceptions that reading one raises, and the one that names it."""

from __future__ import annotations

import zlib

from areal_callbacks.safety.text import make_printable

CORRUPT = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error)

_LONGEST_REASON = 300


def refuse(where: str, error: BaseException) -> ValueError:
    """What is raised instead of ``error``; ``where`` names the file and the line."""
    reason = make_printable(f"{type(error).__name__}: {error}", _LONGEST_REASON)
    return ValueError(f"{where}: not a valid record: {reason}")


def read_integer(name: str, value: object) -> int:
    """A whole number of a line.

    Raises:
        ValueError: it has more than 64 bits, or is none.
    """
    number = int(value)  # type: ignore[call-overload]
    if abs(number) >= 2**63:
        raise ValueError(f"{name} {make_printable(number, 40)} has more than 64 bits")
    return int(number)
