"""A report where a notebook shows it: inside of a frame that has no address."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import Browser
from support.report_runs import export, typical_metrics, write_run
from support.sessions import open_session

from areal_callbacks import show_report
from areal_callbacks.report import build_report


def _write_run(folder: Path) -> Path:
    return write_run(folder, [export(step, typical_metrics(step, 3)) for step in range(1, 4)])


def test_the_frame_shows_the_whole_page(browser: Browser, tmp_path: Path) -> None:
    shown = show_report(_write_run(tmp_path / "a"))
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{shown._repr_html_()}")
    browser.driver.get(notebook.as_uri())
    frame = browser.find("iframe")
    assert frame.size["height"] == shown.height
    browser.driver.switch_to.frame(frame)
    assert browser.text("h1") == "a"
    assert browser.wait(lambda: browser.all("canvas"))


def test_it_is_written_where_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = _write_run(tmp_path / "a"), _write_run(tmp_path / "b")
    assert show_report(one).path == one.parent / "report.html"
    monkeypatch.chdir(tmp_path)
    assert show_report(one, other, names=["x", "y"]).path.resolve() == tmp_path / "report.html"


def test_a_folder_without_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(tmp_path)):
        show_report(tmp_path)


def test_a_session_shows_what_it_has_written_so_far(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        with pytest.raises(ValueError, match=r"metrics\.jsonl"):
            session.report()
        session.tracker.scalar(reward=0.5)
        session.export(7)
        shown = session.report()
    assert shown.path == tmp_path / "report.html"
    assert shown.path.read_text() == build_report([tmp_path], tmp_path / "again.html").read_text()
