"""What the tests of pages share: one Chromium, and quiet consoles. For conftest files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.browser import Browser, require_browser


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Here and not in the fixture, for which pytest would print a line per test."""
    if "browser" in getattr(item, "fixturenames", ()):
        require_browser()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def quiet_console(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an error or a warning in the console of its pages."""
    yield
    if "browser" in request.fixturenames:
        assert request.getfixturevalue("browser").errors() == []
