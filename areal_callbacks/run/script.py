"""Runs an unchanged training script and measures it.

    accelerate launch -m areal_callbacks.run train.py --its-own flags
    AREAL_CALLBACKS='{"moe_balance": true, "every": 10}' python -m areal_callbacks.run train.py
    torchrun --nproc-per-node 8 -m areal_callbacks.run pretrain_gpt.py --its-own flags

The older form of ``areal-callbacks run -- python train.py``: this process is the script's, and the processes that it
starts are observed, too, as the environment variable ``AREAL_CALLBACKS`` configures.
"""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType

from areal_callbacks.run.autoload import observe_frameworks
from areal_callbacks.run.environment import observed_processes

USAGE = "usage: python -m areal_callbacks.run [-m] script_or_module [arguments ...]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``[-m] target arguments…`` as ``python`` would, as ``__main__``, with the frameworks observed.

    Args:
        arguments: by default those of the command line.

    Raises:
        SystemExit: there is no target, or a bad ``AREAL_CALLBACKS``; else whatever the target raises.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_module = given[:1] == ["-m"]
    target = given[as_module:]
    if not target or target[0].startswith("-"):
        raise SystemExit(USAGE)
    try:
        observe_frameworks()
    except ValueError as error:
        raise SystemExit(f"areal_callbacks: {error}") from None
    begin = _find_module(target[0]) if as_module else _find_script(target[0])
    sys.argv = target
    with observed_processes():
        begin()


def run_script(path: str) -> None:
    """Run a script as ``python path`` would, with ``sys.argv`` as it is.

    Not through ``runpy``, which gives a script either its own ``__file__`` or its own ``sys.argv``.

    Raises:
        SystemExit: the script cannot be read; else whatever it raises.
    """
    _find_script(path)()


def _find_script(path: str) -> Callable[[], object]:
    _put_first(str(Path(path).resolve().parent))
    path = os.path.abspath(path)
    code = _compile(path)
    module = ModuleType("__main__")
    module.__file__ = path

    def begin() -> None:
        sys.modules["__main__"] = module
        exec(code, vars(module))

    return begin


def _find_module(name: str) -> Callable[[], object]:
    if not _exists(name):
        raise SystemExit(f"areal_callbacks.run: No module named {name}")
    return partial(runpy.run_module, name, run_name="__main__", alter_sys=True)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:  # a parent is missing, or fails itself, which running it will show
        return not f"{module}.".startswith(f"{error.name}.")


def _compile(path: str) -> CodeType:
    try:
        with io.open_code(path) as file:
            text = file.read()
    except OSError as error:
        print(f"areal_callbacks.run: can't open file: {error}", file=sys.stderr)
        raise SystemExit(2) from None  # Python's own code for it
    try:
        code: CodeType = compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # as Python shows it, without the calls that lead here
        traceback.print_exception(error.with_traceback(None))
        raise SystemExit(1) from None
    return code


def _put_first(folder: str) -> None:
    """``python script`` looks in the script's folder for modules, ``python -m`` in the working directory."""
    if sys.flags.safe_path:
        return
    if sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]
    sys.path.insert(0, folder)
