"""The start-up hook knows the frameworks without importing the observer."""

from __future__ import annotations

import runpy

from areal_callbacks.run import autoload, marks
from areal_callbacks.run.environment import START_UP


def test_it_waits_for_what_the_observer_knows() -> None:
    hook = runpy.run_path(str(START_UP / "sitecustomize.py"), run_name="read")
    assert hook["FRAMEWORKS"] == set(autoload._FRAMEWORKS)
    assert hook["MARKS"] == marks.VARIABLE
