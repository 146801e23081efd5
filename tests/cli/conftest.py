from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import launches


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A working directory with the scripts; afterwards nothing is left among the temporary files."""
    for name, text in launches.SCRIPTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "home").mkdir()
    yield tmp_path
    assert [path for path in (tmp_path / "temporary").iterdir() if path.name.startswith("areal_callbacks_")] == []


@pytest.fixture
def command(place: Path) -> launches.Run:
    """The real command in a process of its own."""
    return functools.partial(launches.launch, place)
