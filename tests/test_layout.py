"""The house itself: what is packaged, what an import loads, what depends on what."""

from __future__ import annotations

import ast
import graphlib
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "areal_callbacks"
MAPPED = ("integrations", "examples")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted(path for folder in (PACKAGE, *(ROOT / name for name in MAPPED)) for path in folder.rglob("*.py"))


TOP_LEVEL = {"__init__", "stats_logger", "stats_tracker", "topology", "workflow_context"}
ROOMS = {
    *("charts", "cli", "config", "core", "findings", "flops", "monitors", "ppo", "report"),
    *("run", "safety", "session", "verify", "watch", "writers", *MAPPED),
}


def parsed(path):
    return ast.parse(path.read_text(), str(path))


def imported(nodes):
    """The absolute modules, and names out of modules, that some nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_folder_with_python_is_a_listed_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")} | {ROOT / name for name in MAPPED}
    names = {folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders}
    names = {f"areal_callbacks.{name}" if name in MAPPED else name for name in names}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(names)
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_folder_is_linked_and_flat(name):
    assert PROJECT["tool"]["setuptools"]["package-dir"][f"areal_callbacks.{name}"] == name
    link = PACKAGE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert list((ROOT / name).glob("*/**/*.py")) == []  # a subpackage would be left out of the wheel


def test_importing_the_package_loads_no_framework():
    heavy = ["torch", "numpy", "transformers", "lightning", "accelerate", "wandb", "tensorboard", "swanlab", "trackio"]
    code = f"import sys, areal_callbacks; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_nothing_imports_the_mapped_folders_by_their_bare_names():
    tests = list((ROOT / "tests").rglob("*.py"))
    bare = [
        (path, name)
        for path in [*SOURCES, *tests]
        for name in imported(ast.walk(parsed(path)))
        if name.split(".")[0] in MAPPED
    ]
    assert bare == []


def test_integrations_do_not_need_each_other():
    files = list((ROOT / "integrations").glob("*.py"))
    public = {f"areal_callbacks.integrations.{path.stem}" for path in files if not path.stem.startswith("_")}
    others = {(path.name, name) for path in files for name in imported(parsed(path).body) if name in public}
    derived = ("trl.py", "axolotl.py", "swift.py")  # their trainers are Hugging Face Trainers
    assert others <= {(name, "areal_callbacks.integrations.transformers") for name in derived}


def test_every_public_module_has_a_docstring():
    public = [path for path in SOURCES if path.name != "__init__.py" and not path.name.startswith("_")]
    assert [str(path.relative_to(ROOT)) for path in public if not ast.get_docstring(parsed(path))] == []


def test_the_package_depends_on_five_others():
    names = {requirement.partition(">")[0] for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "pyyaml", "click", "tabulate"}


def test_the_top_level_holds_the_rooms_and_areals_import_paths() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == TOP_LEVEL
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= ROOMS
    layers = {name.strip(" ()") for line in contract()["layers"] for name in line.replace("|", ":").split(":")}
    assert layers == ROOMS | TOP_LEVEL - {"__init__"}


def test_the_contributors_guide_names_every_room() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("\n\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)/`", row.split("|")[1])} == ROOMS


def contract():
    (layers,) = PROJECT["tool"]["importlinter"]["contracts"]
    assert layers["exhaustive"], "a module outside the layers has to fail the check"
    assert layers["containers"] == ["areal_callbacks"]
    return layers


@pytest.mark.parametrize("unit", ["modules", "rooms"])
def test_nothing_imports_in_a_circle(unit: str) -> None:
    graph = grimp.build_graph("areal_callbacks", cache_dir=None)
    name: Callable[[str], str] = str if unit == "modules" else lambda module: module.split(".")[1]
    needs: dict[str, set[str]] = {}
    for module in graph.modules - {"areal_callbacks"}:
        imported = graph.find_modules_directly_imported_by(module) - {"areal_callbacks"}
        needs.setdefault(name(module), set()).update(name(other) for other in imported)
    for user, used in needs.items():
        used.discard(user)
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which shows the circle


# -- sizes, in lines as they stand in the file


FILES = [path for path in SOURCES if "examples" not in path.parts]
LENGTHS = {path: len(path.read_text().splitlines()) for path in FILES}
FUNCTIONS = [
    (path, node.name, node.end_lineno - node.lineno + 1)
    for path in FILES
    for node in ast.walk(parsed(path))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]


def percentile_95(lengths: list[int]) -> float:
    return statistics.quantiles(lengths, n=20, method="inclusive")[-1]


def test_files_are_short() -> None:
    assert {path.name: length for path, length in LENGTHS.items() if length > 300} == {}
    assert statistics.median(LENGTHS.values()) <= 100


def test_functions_are_short() -> None:
    lengths = [length for _, _, length in FUNCTIONS]
    assert statistics.median(lengths) <= 6
    longest = sorted(FUNCTIONS, key=lambda function: -function[2])[:20]
    assert percentile_95(lengths) <= 21, f"the longest: {[(str(path), *rest) for path, *rest in longest]}"


def test_functions_of_formulas_are_not_long() -> None:
    functions = [function for function in FUNCTIONS if function[0].parent.name == "ppo"]
    longest = sorted(functions, key=lambda function: -function[2])[:5]
    shown = [(path.name, *rest) for path, *rest in longest]
    assert percentile_95([length for _, _, length in functions]) <= 40, f"the longest: {shown}"


def test_test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > 300} == {}
