"""What a command says that cannot do its work: one line, the same for the same fault in each command."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from areal_callbacks.safety.text import make_printable

_MOST_NEAR = 3
_NEAR = 0.5


def explain(error: OSError | ValueError | RuntimeError) -> str:
    """The path and what is wrong with it, without the number of the error."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return make_printable(f"{where}{error.strerror}")
    return make_printable(error, 2000)


def explain_unknown_model(given: str, known: Collection[str]) -> str:
    """That an argument names no model, and the model types whose names are near to it."""
    near = difflib.get_close_matches(given.lower().rpartition("/")[2], known, _MOST_NEAR, _NEAR)
    hint = f"; near to it: {', '.join(near)}" if near else ""
    return f"{make_printable(repr(given), 200)} is neither a local path nor a model type{hint}"
