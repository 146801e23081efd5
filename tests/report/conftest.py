from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _quiet_console(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an error or a warning in the console of its pages."""
    yield
    if "browser" in request.fixturenames:
        assert request.getfixturevalue("browser").errors() == []
