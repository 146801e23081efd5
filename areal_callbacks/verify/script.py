"""Some steps of a script with the recount beside them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_callbacks.run.autoload import stop_observing
from areal_callbacks.run.script import main
from areal_callbacks.verify.beside import Beside, Enough


def run_beside(command: Sequence[str], steps: int) -> tuple[Beside, int | str | None]:
    """Run ``script.py arguments…`` or ``-m module arguments…`` in this process.

    Args:
        command: words, as :func:`find_script` gives them.
        steps: optimizer steps after which the script is ended.

    Returns:
        What was exported and recounted, and the code with which the script ended by itself, if it did.
    """
    argv = sys.argv
    beside = Beside(steps)
    code: int | str | None = None
    try:
        with beside:
            main(command)
    except Enough:
        pass
    except SystemExit as end:
        code = end.code
    finally:
        stop_observing()
        sys.argv = argv
    return beside, code


def find_script(command: Sequence[str]) -> list[str]:
    """The words without a leading interpreter; a script may be named as a shell finds it.

    Raises:
        ValueError: there is no script among them.
    """
    words = list(command)
    if words and Path(words[0]).name.startswith("python"):
        del words[0]
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        raise ValueError(f"COMMAND: a Python script, or -m and a module, is needed; got {' '.join(command)!r}")
    installed = None if words[0] == "-m" or Path(words[0]).exists() else shutil.which(words[0])
    return words if installed is None else [installed, *words[1:]]
