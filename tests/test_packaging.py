"""What pyproject.toml lists by hand is whole: data files, and the versions that `uv sync` installs."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_data_file_is_listed() -> None:
    package_data = PROJECT["tool"]["setuptools"]["package-data"]
    listed = {
        path
        for package, patterns in package_data.items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    present = {
        Path(folder, file)
        for folder, _, files in os.walk(ROOT / "areal_callbacks", followlinks=True)
        for file in files
        if not file.endswith((".py", ".pyc"))
    }
    assert sorted(present - listed) == []


def test_uv_installs_the_versions_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert PROJECT["tool"]["uv"]["constraint-dependencies"] == [line for line in lines if line and line[0] != "#"]


def test_uv_sync_installs_what_make_demo_does() -> None:
    (group,) = PROJECT["dependency-groups"]["dev"]
    assert group.removeprefix("areal-callbacks") in (ROOT / "Makefile").read_text()
