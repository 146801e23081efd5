"""Python runs this at its start in every process below ``areal-callbacks run``: its folder is on ``PYTHONPATH``.

Programs of other environments and of older versions of Python read it, too. So it uses what Python has loaded by now,
and imports this package only in a process that imports an observed framework.
"""

from __future__ import annotations

import os
import sys

FRAMEWORKS = frozenset(
    (
        "accelerate.accelerator",
        "areal_callbacks.session.session",
        "lightning.fabric.fabric",
        "lightning.pytorch.trainer.trainer",
        "lightning_fabric.fabric",
        "megatron.training.training",
        "pytorch_lightning.trainer.trainer",
        "transformers.trainer",
    )
)
"""Modules before whose import the observer begins; the keys of ``areal_callbacks.run.autoload``."""

MARKS = "AREAL_CALLBACKS_MARKS"


class BeforeFrameworks:
    """Finds no module by itself; before the first of the frameworks is found, the observer begins."""

    def __init__(self) -> None:
        self._is_waiting = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in FRAMEWORKS or not self._is_waiting:
            return None
        self._is_waiting = False
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        _observe(name)
        for finder in list(sys.meta_path):
            spec = getattr(finder, "find_spec", _find_nothing)(name, path, target)
            if spec is not None:
                return spec
        return None


def _find_nothing(name: str, path: object, target: object) -> None:  # noqa: ARG001
    return None


def _observe(name: str) -> None:
    try:
        from areal_callbacks.run.autoload import observe_frameworks

        observe_frameworks()
    except Exception as error:  # noqa: BLE001 - the program runs as without us
        _say_once(f"{sys.executable} imports {name.partition('.')[0]}, but cannot be measured: {error}")


def _say_once(message: str) -> None:
    """One line for all processes of a command."""
    folder = os.environ.get(MARKS)
    try:
        if folder:
            open(os.path.join(folder, "said"), "x").close()
    except OSError:
        return
    sys.stderr.write(f"areal-callbacks run: {message} (areal-callbacks has to be installed in this environment)\n")


def _mark_process() -> None:
    folder = os.environ.get(MARKS)
    try:
        if folder:
            open(os.path.join(folder, str(os.getpid())), "x").close()
    except OSError:
        pass  # another machine has no such folder


def _leave_path() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]


def _run_existing_one() -> None:
    """The module of this name that would run without us."""
    ours = sys.modules.pop(__name__)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if __name__ == "sitecustomize":
    _mark_process()
    sys.meta_path.insert(0, BeforeFrameworks())  # type: ignore[arg-type]
    _leave_path()
    _run_existing_one()
