"""Who exports the global trackers, and in which folders runs are."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from support.sessions import open_session, read_rows

from areal_callbacks import MetricsSession, stats_tracker
from areal_callbacks.session import open_sessions


def test_the_global_trackers_belong_to_the_first_open_session(tmp_path: Path) -> None:
    first, second = (open_session(tmp_path / name) for name in "ab")
    stats_tracker.scalar(value=1.0)
    assert "value" not in second.export(1).metrics
    assert first.export(1).metrics["value"] == 1.0
    first.close()
    stats_tracker.get("rollout").scalar(reward=2.0)
    assert second.export(2).metrics["rollout/reward"] == 2.0
    second.close()


def test_a_session_that_was_dropped_holds_nobody_up(tmp_path: Path) -> None:
    open_session(tmp_path)
    gc.collect()
    session = open_session(tmp_path)
    stats_tracker.scalar(value=1.0)
    assert session.export(1).metrics["value"] == 1.0
    session.close()


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda pattern: "20250101-120000")
    first, second = MetricsSession(report=False), MetricsSession(report=False)
    with first, second:
        for session, value in ((first, 1.0), (second, 2.0)):
            session.tracker.scalar(loss=value)
            session.export(1)
    with MetricsSession(report=False) as third:
        third.tracker.scalar(loss=3.0)
        third.export(1)
    for name, value in (("20250101-120000", 1.0), ("20250101-120000-2", 2.0), ("20250101-120000-3", 3.0)):
        assert read_rows(Path("areal_metrics", name)) == [(1, {"loss": value})]


def test_runs_beside_the_same_files_of_a_host_have_folders_of_their_own(tmp_path: Path) -> None:
    """One that was closed leaves its folder to the next, which goes on in the same file."""
    first = open_session(open_sessions.choose_beside(tmp_path))
    second = open_session(open_sessions.choose_beside(tmp_path))
    third = open_session(open_sessions.choose_beside(tmp_path))
    names = [session.output_dir.name for session in (first, second, third)]
    assert names == ["areal_metrics", "areal_metrics_2", "areal_metrics_3"]
    second.close()
    assert open_sessions.choose_beside(tmp_path) == tmp_path / "areal_metrics_2"
    assert open_sessions.choose_beside(tmp_path / "elsewhere") == tmp_path / "elsewhere" / "areal_metrics"
    first.close()
    third.close()


def test_a_stats_logger_section_names_the_folder(tmp_path: Path) -> None:
    section = {"experiment_name": "math", "trial_name": "one", "fileroot": str(tmp_path)}
    with MetricsSession(stats_logger=section, report=False) as session:
        session.tracker.scalar(loss=1.0)
        session.export(1)
    (file,) = tmp_path.rglob("metrics.jsonl")
    assert file.parent == session.output_dir
    assert {"math", "one"} <= set(file.parts)
    assert read_rows(session.output_dir) == [(1, {"loss": 1.0})]


def test_the_oldest_open_session_is_the_first(tmp_path: Path) -> None:
    before = open_sessions.first()
    assert before is None
    one, two = open_session(tmp_path / "one"), open_session(tmp_path / "two")
    assert open_sessions.first() is one
    one.close()
    assert open_sessions.first() is two
    two.close()
    assert open_sessions.first() is None
