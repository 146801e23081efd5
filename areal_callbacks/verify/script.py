"""Some steps of a script with the recount beside them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from areal_callbacks.run.autoload import stop_observing
from areal_callbacks.run.script import main
from areal_callbacks.verify.beside import Beside, Enough


def run_beside(command: Sequence[str], steps: int) -> tuple[Beside, int | str | None]:
    """Run ``[python] script.py arguments…`` or ``[python] -m module arguments…`` in this process.

    Args:
        command: words; a leading interpreter is left out.
        steps: optimizer steps after which the script is ended.

    Returns:
        What was exported and recounted, and the code with which the script ended by itself, if it did.
    """
    words, argv = list(command), sys.argv
    if words and Path(words[0]).name.startswith("python"):
        del words[0]
    beside = Beside(steps)
    code: int | str | None = None
    try:
        with beside:
            main(words)
    except Enough:
        pass
    except SystemExit as end:
        code = end.code
    finally:
        stop_observing()
        sys.argv = argv
    return beside, code
