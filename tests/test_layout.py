"""The house itself: what is packaged, what an import loads, what depends on what."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import areal_callbacks

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "areal_callbacks"
MAPPED = ("integrations", "examples")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted(path for folder in (PACKAGE, *(ROOT / name for name in MAPPED)) for path in folder.rglob("*.py"))


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
    assert others <= {("trl.py", "areal_callbacks.integrations.transformers")}


def test_every_public_module_has_a_docstring():
    public = [path for path in SOURCES if path.name != "__init__.py" and not path.name.startswith("_")]
    assert [str(path.relative_to(ROOT)) for path in public if not ast.get_docstring(parsed(path))] == []


def test_the_package_depends_on_five_others():
    names = {requirement.partition(">")[0] for requirement in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "pyyaml", "click", "tabulate"}


@pytest.mark.parametrize("name", areal_callbacks.__all__)
def test_every_public_name_resolves(name):
    assert getattr(areal_callbacks, name) is not None
    assert name in dir(areal_callbacks)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = areal_callbacks.nothing
