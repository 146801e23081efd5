"""The file of totals beside checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal_callbacks.session.saved_totals import SavedTotals

FILE_NAME = "totals.json"

STATE = {"totals": {"tokens": 2**60, "seconds": 0.1, "flops": None, "optimizer_steps": 3}}


def test_it_returns_what_was_written_for_an_iteration(tmp_path: Path) -> None:
    totals = SavedTotals(tmp_path / "new" / FILE_NAME)
    totals.write(STATE, 10)
    totals.write({"totals": {"tokens": 5}}, 20)
    assert SavedTotals(tmp_path / "new" / FILE_NAME).read(10) == STATE
    assert SavedTotals(tmp_path / "new" / FILE_NAME).read(20) == {"totals": {"tokens": 5}}
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE_NAME]


def test_a_later_attempt_replaces_an_iteration(tmp_path: Path) -> None:
    totals = SavedTotals(tmp_path / FILE_NAME)
    totals.write({"totals": {"tokens": 1}}, 10)
    totals.write(STATE, 10)
    assert totals.read(10) == STATE
    assert list(json.loads((tmp_path / FILE_NAME).read_text())) == ["10"]


def test_an_unknown_iteration_is_none_with_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    totals = SavedTotals(tmp_path / FILE_NAME)
    assert totals.read(10) is None
    assert totals.read(10) is None
    message = f"{tmp_path / FILE_NAME} has no totals of iteration 10: they start at zero"
    assert [record.getMessage() for record in caplog.records] == [message]


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_file_breaks_nothing(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    totals = SavedTotals(tmp_path / FILE_NAME)
    assert totals.read(10) is None
    totals.write(STATE, 10)
    assert (tmp_path / FILE_NAME).read_text() == content
    assert len(caplog.records) == 1
    assert str(tmp_path / FILE_NAME) in caplog.records[0].getMessage()


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    SavedTotals(tmp_path / "file" / FILE_NAME).write(STATE, 1)
    assert len(caplog.records) == 1
    assert "could not be saved" in caplog.records[0].getMessage()


def test_a_file_may_hold_one_state(tmp_path: Path) -> None:
    totals = SavedTotals(tmp_path / FILE_NAME)
    totals.write(STATE)
    assert totals.read() == STATE
