from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import browser_fixtures
from support.browser import Browser
from support.report_pages import STEPS, build_page, plant_counts
from support.report_runs import export, typical_metrics

browser = browser_fixtures.browser
quiet_console = browser_fixtures.quiet_console
pytest_runtest_setup = browser_fixtures.pytest_runtest_setup


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
