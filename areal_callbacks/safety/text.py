"""Text in messages: what others wrote, short and without characters that a terminal obeys; and numbers of things."""

from __future__ import annotations

from collections.abc import Callable

LONGEST = 500


def make_printable(text: object, longest: int = LONGEST) -> str:
    """``str(text)`` in at most ``longest`` characters and an ellipsis; line ends stay, other control characters, and
    those that turn the direction of a line, are written as escapes.

    A file, a path or an exception's message may hold anything, also a gigabyte of it.
    """
    whole = _convert(str, text)
    shown = whole[: longest + 1]
    if not shown.isprintable():
        shown = "".join(map(_escape, shown))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def tell_error(error: BaseException) -> str:
    """``repr(error)``; a class of the host's may raise there, too."""
    return _convert(repr, error)


def tell_number(number: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _convert(convert: Callable[[object], str], value: object) -> str:
    try:
        return convert(value)
    except Exception:  # noqa: BLE001 - an object of a host may raise anything
        return f"<{type(value).__name__}>"


def _escape(character: str) -> str:
    return character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
