"""One message per trouble."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from areal_callbacks.safety import reporting
from areal_callbacks.safety.reporting import report_once


def test_a_key_is_reported_once_from_many_threads(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(8) as pool:
        logged = list(pool.map(lambda number: report_once("key", f"message {number}"), range(200)))
    assert sum(logged) == 1
    assert [(record.name, record.levelno) for record in caplog.records] == [("areal_callbacks", logging.WARNING)]


def test_other_keys_and_a_reset_report_again(caplog: pytest.LogCaptureFixture) -> None:
    assert report_once("one", "100 % literal")
    assert report_once("two", "b")
    reporting.reset()
    assert report_once("one", "c")
    assert [record.getMessage() for record in caplog.records] == ["100 % literal", "b", "c"]


def test_the_traceback_is_kept_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "areal_callbacks")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        report_once("key", "it failed")
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.DEBUG]
    assert "boom" in caplog.text
