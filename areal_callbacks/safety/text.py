"""Text that others wrote, as messages may show it: short, and without characters that a terminal obeys."""

from __future__ import annotations

LONGEST = 500


def make_printable(text: object, longest: int = LONGEST) -> str:
    """``str(text)`` in at most ``longest`` characters and an ellipsis; line ends stay, other control characters, and
    those that turn the direction of a line, are written as escapes.

    A file, a path or an exception's message may hold anything, also a gigabyte of it.
    """
    whole = str(text)
    shown = whole[: longest + 1]
    if not shown.isprintable():
        shown = "".join(map(_escape, shown))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _escape(character: str) -> str:
    return character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
