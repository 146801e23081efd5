"""Runs a training script that knows nothing of this package, and measures it.

    accelerate launch -m areal_callbacks.run train.py --its-own flags
    AREAL_CALLBACKS='{"moe_balance": true, "every": 10}' python -m areal_callbacks.run train.py

Accelerate loops, Hugging Face Trainers and Lightning Trainers that the script makes are observed, each once, as the
environment variable ``AREAL_CALLBACKS`` configures. Frameworks that the script does not import are not imported.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from areal_callbacks.run.autoload import observe_frameworks

USAGE = "usage: python -m areal_callbacks.run [-m] script_or_module [arguments ...]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``[-m] target arguments…`` as ``python`` would, as ``__main__``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_module = given[:1] == ["-m"]
    target = given[as_module:]
    if not target or target[0].startswith("-"):
        raise SystemExit(USAGE)
    try:
        observe_frameworks()
    except ValueError as error:
        raise SystemExit(f"areal_callbacks: {error}") from None
    sys.argv = target
    if as_module:
        runpy.run_module(target[0], run_name="__main__", alter_sys=True)
    else:
        _put_first(str(Path(target[0]).resolve().parent))
        _run_script(os.path.abspath(target[0]))


def _run_script(path: str) -> None:
    """Not through ``runpy``, which gives a script either its own ``__file__`` or its own ``sys.argv``."""
    module = ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))


def _put_first(folder: str) -> None:
    """``python script`` looks in the script's folder for modules, ``python -m`` in the working directory."""
    if sys.flags.safe_path:
        return
    if sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]
    sys.path.insert(0, folder)
