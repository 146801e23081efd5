"""The public names, and the documentation that holds them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import areal_callbacks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
API = (ROOT / "docs/api.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", API, re.MULTILINE | re.DOTALL))
MODULES = set(re.findall(r"`(areal_callbacks\.[\w.]+)`", API.partition("## Modules")[2]))


@pytest.mark.parametrize("name", areal_callbacks.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(areal_callbacks, name) is not None
    assert name in dir(areal_callbacks)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = areal_callbacks.nothing


def test_type_checkers_see_the_same_names() -> None:
    (block,) = (node for node in ast.parse(Path(areal_callbacks.__file__).read_text()).body if isinstance(node, ast.If))
    seen = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted([*seen, "__version__"]) == sorted(areal_callbacks.__all__)


def test_every_public_name_has_one_section_of_the_reference() -> None:
    headings = Counter(re.findall(r"^### `(\w+)`$", API, re.MULTILINE))
    assert headings == Counter(areal_callbacks.__all__)
    assert [name for name, text in SECTIONS.items() if len(text.split()) < 4] == []


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_reference_shows_real_arguments(name: str) -> None:
    for arguments in re.findall(rf"`{name}\(([^`]*)\)`", SECTIONS[name]):
        shown = ast.parse(f"def f({arguments}): ...").body[0].args
        every = [*shown.posonlyargs, *shown.args, shown.vararg, *shown.kwonlyargs, shown.kwarg]
        names = [one.arg for one in every if one is not None]
        assert names == list(inspect.signature(getattr(areal_callbacks, name)).parameters)


def imports(page: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import from this package in the Python blocks of a page."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(compile(block, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "areal_callbacks":
                yield from ((node.module or "", alias.name) for alias in node.names)


def is_documented(module: str) -> bool:
    """A module of the reference, or a public one inside it."""
    return "._" not in module and any(module == known or module.startswith(f"{known}.") for known in MODULES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_public_names_and_documented_modules_only(page: Path) -> None:
    hidden = [
        (module, name)
        for module, name in imports(page)
        if (name not in areal_callbacks.__all__ if module == "areal_callbacks" else not is_documented(module))
    ]
    assert hidden == []
    short = [(module, name) for module, name in imports(page) if "." in module and name in areal_callbacks.__all__]
    assert short == [], "the package itself exports these"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_public_names_and_documented_modules_only(page: Path) -> None:
    mentioned = set(re.findall(r"`(areal_callbacks(?:\.\w+)+)", page.read_text())) - {"areal_callbacks.json"}
    public = {f"areal_callbacks.{name}" for name in areal_callbacks.__all__}
    assert [name for name in mentioned if name not in public and not is_documented(name)] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_modules_of_the_reference_exist(module: str) -> None:
    assert importlib.util.find_spec(module) is not None
