from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, require_browser
from support.report_pages import STEPS, build_page, plant_counts
from support.report_runs import export, typical_metrics


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


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run whose hot and dead experts are known."""
    exports = [export(step, typical_metrics(step, STEPS), plant_counts(step)) for step in range(1, STEPS + 1)]
    return build_page(tmp_path_factory.mktemp("report"), exports, names=["planted"])


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    """The report, as a fresh visitor sees it."""
    browser.open(report)
    yield browser
    browser.prefer("light")


@pytest.fixture(autouse=True)
def _quiet_console(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an error or a warning in the console of its pages."""
    yield
    if "browser" in request.fixturenames:
        assert request.getfixturevalue("browser").errors() == []
