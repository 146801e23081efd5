from __future__ import annotations

from support import browser_fixtures

browser = browser_fixtures.browser
quiet_console = browser_fixtures.quiet_console
pytest_runtest_setup = browser_fixtures.pytest_runtest_setup
