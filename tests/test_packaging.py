"""Everything in the package's folders reaches the wheel: setuptools silently leaves out what its lists do not name."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAPPED = ("integrations", "examples")
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def _folders() -> Iterator[tuple[Path, list[str]]]:
    """Folders of the package, through the links to the mapped ones, with their files."""
    for folder, subfolders, files in os.walk(ROOT / "areal_callbacks", followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        yield Path(folder).relative_to(ROOT), files


def test_every_package_is_listed() -> None:
    present = [".".join(folder.parts) for folder, files in _folders() if "__init__.py" in files]
    assert sorted(SETUPTOOLS["packages"]) == sorted(present)


def test_python_files_lie_in_packages_only() -> None:
    assert [
        folder for folder, files in _folders() if "__init__.py" not in files and any(f.endswith(".py") for f in files)
    ] == []


def test_every_data_file_is_listed() -> None:
    listed = {
        path.relative_to(ROOT)
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    present = {folder / file for folder, files in _folders() for file in files if not file.endswith((".py", ".pyc"))}
    assert sorted(present - listed) == []


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_folders_are_linked_for_editors(name: str) -> None:
    assert SETUPTOOLS["package-dir"][f"areal_callbacks.{name}"] == name
    assert os.readlink(ROOT / "areal_callbacks" / name) == f"../{name}"
