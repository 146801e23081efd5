"""How values and keys of a configuration look in messages: short, without control characters, quick to make."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

_LONGEST_KEY = 80
_LONGEST_VALUE = 200


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 120

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python prints no integer of more than some 4,000 digits
            return f"an integer of {x.bit_length()} bits"


_short = _Short()


def show(value: object) -> str:
    """``repr(value)`` in at most 200 characters, whatever the size of the value."""
    text = _short.repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def show_key(key: object) -> str:
    """The key as it was written if that is short and printable, else as a value."""
    is_plain = isinstance(key, str) and len(key) <= _LONGEST_KEY and key.isprintable()
    return str(key) if is_plain else show(key)


def suggest(word: object, choices: Iterable[str]) -> str:
    """``; did you mean 'every'?`` if a choice looks like the word, else nothing."""
    close = difflib.get_close_matches(word[:_LONGEST_KEY], choices, n=1) if isinstance(word, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""
