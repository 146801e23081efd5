"""The planted faults: what is broken in which host, what is promised then, and the test that shows it.

A test declares its fault with :func:`fault`, one that is parametrised over several with :func:`faults`. The page
``docs/faults.md`` is :func:`render` of them all and of the kinds of harm: ``python -m support.fault_table``, with this
folder's parent on the path, writes it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from support.harms import render_harms

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"

Test = TypeVar("Test", bound=Callable[..., Any])


class Fault(NamedTuple):
    """One planted fault.

    Attributes:
        host: where it is planted.
        broken: what.
        promised: what happens all the same.
    """

    host: str
    broken: str
    promised: str


def fault(row: Fault) -> Callable[[Test], Test]:
    """Declare the fault of a test."""
    return _declare({"": row})


def faults(rows: Mapping[str, Fault]) -> Callable[[Test], Test]:
    """Parametrise a test over faults: its argument ``case`` is the name of one."""
    declare = _declare(rows)
    return lambda test: pytest.mark.parametrize("case", list(rows))(declare(test))


def _declare(rows: Mapping[str, Fault]) -> Callable[[Test], Test]:
    def declare(test: Test) -> Test:
        test.faults = dict(rows)  # type: ignore[attr-defined]
        return test

    return declare


def collect() -> dict[str, Fault]:
    """Test → fault, of every file of tests that declares some."""
    found: dict[str, Fault] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "from support.fault_table import Fault" not in path.read_text():
            continue
        for name, value in vars(_load(path)).items():
            for case, row in getattr(value, "faults", {}).items():
                found[f"{path.relative_to(TESTS)}::{name}" + (f"[{case}]" if case else "")] = row
    return found


def render(rows: Mapping[str, Fault]) -> str:
    """The page."""
    lines = [_HEAD]
    for host in dict.fromkeys(row.host for row in sorted(rows.values())):
        lines.append(f"\n## {host}\n\n| What is broken | What is promised | Shown by |\n| --- | --- | --- |\n")
        for test, row in rows.items():
            if row.host == host:
                lines.append(f"| {row.broken} | {row.promised} | `{test}` |\n")
    return "".join([*lines, render_harms()])


_HEAD = """# What is promised under each fault

Nothing of ours ends, hangs or slows a training. Each line is one fault that is planted, without us and with us where
the host is concerned, and the test that shows what is promised. The page is made from those tests
(`PYTHONPATH=tests python -m support.fault_table`).

Everywhere: the weights are those of a training without us, and a fault is told in one message.
"""


def _load(path: Path) -> Any:
    name = f"faults_{path.parent.name}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


if __name__ == "__main__":
    from support import fault_table

    PAGE.write_text(fault_table.render(fault_table.collect()))
