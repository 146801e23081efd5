"""The environment in which every Python process observes itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from areal_callbacks.config import ENVIRONMENT_VARIABLE
from areal_callbacks.run.marks import VARIABLE, Marks, make_marks

START_UP = Path(__file__).with_name("start_up")
"""The folder of the start-up hook."""


@contextmanager
def observed_processes(settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Processes that are started meanwhile observe themselves. At the end one line says so if none has trained.

    Inside a command that is observed already, that one says it.

    Args:
        settings: configuration keys; by default those of this environment.
    """
    if os.environ.get(VARIABLE):
        with _set_environment(_variables(settings)):
            yield
        return
    with (
        make_marks() as marks,
        _set_environment({**_variables(settings), VARIABLE: str(marks.folder)}),
        ExitStack() as at_end,
    ):
        at_end.callback(_tell_what_is_missing, marks)
        try:
            yield
        except OSError:  # no command was started, which its caller says
            at_end.pop_all()
            raise


def _tell_what_is_missing(marks: Marks) -> None:
    if problem := marks.missing():
        print(f"areal-callbacks run: {problem}", file=sys.stderr, flush=True)


def _variables(settings: Mapping[str, Any] | None) -> dict[str, str]:
    given = os.environ.get("PYTHONPATH")
    folders = [folder for folder in (given or "").split(os.pathsep) if folder != str(START_UP)]
    path = os.pathsep.join([str(START_UP), *(folders if given else [])])
    return {"PYTHONPATH": path, **({} if settings is None else {ENVIRONMENT_VARIABLE: json.dumps(settings)})}


@contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
