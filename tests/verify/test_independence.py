"""The recount judges the metrics: it may share nothing with what it judges."""

from __future__ import annotations

import ast
from pathlib import Path

import areal_callbacks

VERIFY = Path(areal_callbacks.__file__).parent / "verify"
BESIDE = {"beside.py", "comparison.py", "script.py"}
"""What puts the recount beside the metrics has to know both."""


def imported(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.startswith("areal_callbacks")}


def test_the_recount_imports_nothing_else_of_the_package() -> None:
    files = [path for path in VERIFY.glob("*.py") if path.name not in BESIDE]
    assert len(files) >= 10
    assert {name for path in files for name in imported(path) if not name.startswith("areal_callbacks.verify")} == set()


def test_what_stands_beside_it_imports_no_monitor() -> None:
    found = {name for name in BESIDE for name in imported(VERIFY / name)}
    assert found
    assert not [name for name in found if "monitors" in name]
