"""Every data file in the package reaches the wheel: setuptools silently leaves out what is not listed."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_data_file_is_listed() -> None:
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
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
