"""When a host's logging events reduce what was recorded, whose row takes it, and what becomes of the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.sessions import open_session, read_rows
from torch import nn

from areal_callbacks import MetricsSession, stats_tracker
from areal_callbacks.session.schedule import LoggingEvents


def value_of(events: LoggingEvents, step: int) -> float | None:
    """What a row of the host takes at this step."""
    export = events.export(step, {"loss": float(step)})
    return None if export is None else export.metrics["value"]


def train_step(session: MetricsSession, model: nn.Module) -> None:
    with session.step():
        model(torch.ones(1, 2)).sum().backward()


def test_every_second_event_takes_what_came_since_the_last_one(tmp_path: Path) -> None:
    with open_session(tmp_path, every=2) as session:
        events, due, taken = LoggingEvents(session), [], []
        for step in range(1, 6):
            session.tracker.scalar(value=float(step))
            due.append(events.reached(step))
            taken.append(value_of(events, step))
        events.finish(5)
        taken.append(value_of(events, 5))
    assert due == [False, True, False, True, False]
    assert taken == [None, 1.5, None, 3.5, None, 5.0]
    assert read_rows(tmp_path) == [
        (step, {"value": value, "loss": step}) for step, value in ((2, 1.5), (4, 3.5), (5, 5))
    ]


def test_steps_between_exports_are_counted_whatever_the_rows_are(tmp_path: Path) -> None:
    with open_session(tmp_path, every=10) as session:
        events = LoggingEvents(session, 7)
        assert [step for step in (8, 12, 16, 17, 26, 27, 40, 41, 50) if events.reached(step)] == [17, 27, 40, 50]
        batches = LoggingEvents(session, 0, steps=100)
        assert [batch for batch in range(4, 60, 4) if batches.reached(batch, 100 + batch // 2)] == [20, 40]


def test_a_row_that_no_event_announced_takes_nothing(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events = LoggingEvents(session)
        session.tracker.scalar(value=1.0)
        assert value_of(events, 1) is None  # an evaluation's row, say
        assert events.reached(1)
        assert value_of(events, 1) == 1.0
        assert value_of(events, 1) is None
    assert len(read_rows(tmp_path)) == 1


def test_a_checkpoint_reduces_and_the_next_event_takes_it(tmp_path: Path) -> None:
    """Totals are whole then, and nothing is logged."""
    model = nn.Linear(2, 1)
    with open_session(tmp_path).attach(model) as session:
        events = LoggingEvents(session)
        train_step(session, model)
        session.tracker.scalar(value=1.0)
        assert session.state_dict()["totals"]["seconds"] == 0
        events.reduce(1)
        assert session.state_dict()["totals"]["seconds"] > 0
        assert value_of(events, 1) is None
        session.tracker.scalar(value=3.0)
        assert events.reached(2)
        assert value_of(events, 2) == 2.0
    assert [step for step, _ in read_rows(tmp_path)] == [2]


def test_the_same_progress_is_reduced_once(tmp_path: Path) -> None:
    """A checkpoint and two rows of one step: the second row has nothing of ours."""
    with open_session(tmp_path) as session:
        events = LoggingEvents(session)
        session.tracker.scalar(value=1.0)
        events.reduce(4)
        session.tracker.scalar(value=7.0)
        events.reduce(4)
        assert events.reached(4)
        assert value_of(events, 4) == 1.0
        assert events.reached(4)
        assert value_of(events, 4) is None
        events.finish(4)
        assert value_of(events, 4) == 7.0
    assert [(step, row["value"]) for step, row in read_rows(tmp_path)] == [(4, 1.0), (4, 7.0)]


def test_the_end_takes_the_tail(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with open_session(tmp_path, every=10).attach(model) as session:
        events = LoggingEvents(session)
        for step in (1, 2, 3):
            train_step(session, model)
            session.tracker.scalar(value=float(step))
            assert not events.reached(step)
        events.finish(3)
        export = events.export(3)
    assert export is not None
    assert export.metrics["value"] == 2.0
    assert export.metrics["train_perf/seconds"] > 0


def test_the_end_takes_what_was_recorded_late_and_measures_no_empty_interval(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with open_session(tmp_path).attach(model) as session:
        events = LoggingEvents(session)
        train_step(session, model)
        events.reached(1)
        events.export(1)
        session.tracker.scalar(reward=0.5)
        events.finish(1)
        export = events.export(1)
        assert export is not None
        assert export.metrics == {"reward": 0.5}
        events.finish(1)
        assert events.export(1) is None


@pytest.mark.parametrize("taken_out", [False, True])
def test_what_is_recorded_between_two_trainings_waits_for_the_next(taken_out: bool, tmp_path: Path) -> None:
    open_session(tmp_path / "1").close()
    stats_tracker.scalar(reward=2.0)
    if taken_out:
        assert stats_tracker.export_all()["reward"] == 2.0
    with open_session(tmp_path / "2") as session:
        export = session.export(1)
    assert export.metrics.get("reward") == (None if taken_out else 2.0)
    assert read_rows(tmp_path / "1") == []


def test_a_training_that_goes_on_counts_from_where_it_stands(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events = LoggingEvents(session, 10)
        session.tracker.scalar(value=1.0)
        events.reduce(10)
        assert not session.has_pending
        events.reduce(11)
        assert session.has_pending
        assert events.progress == 11


def test_closing_meets_nobody_and_loses_nothing_of_one_process(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    events = LoggingEvents(session)
    session.tracker.scalar(value=1.0)
    events.reduce(3)
    session.tracker.scalar(value=9.0)
    events.close()
    events.close()
    assert read_rows(tmp_path) == [(3, {"value": 5.0})]
    session.tracker.scalar(value=5.0)
    session.export(4)
    assert len(read_rows(tmp_path)) == 1


def test_flushing_tells_what_it_wrote(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events = LoggingEvents(session)
        assert events.flush() is None
        session.tracker.scalar(value=1.0)
        events.reduce(2)
        export = events.flush()
        assert export is not None
        assert (export.step, export.metrics) == (2, {"value": 1.0})
        assert events.flush() is None
    assert read_rows(tmp_path) == [(2, {"value": 1.0})]


SCRIPT = """
import sys
from areal_callbacks import MetricsSession, stats_tracker
from areal_callbacks.session.schedule import LoggingEvents
from areal_callbacks.session.step_exports import StepExports

for name, kind in (("events", LoggingEvents), ("steps", StepExports)):
    session = MetricsSession(output_dir=f"{sys.argv[1]}/{name}", report=False)
    schedule = globals()[name] = kind(session)
    session.tracker.scalar(value=1.0)
    schedule.reduce(2)
    session.tracker.scalar(value=5.0)
if sys.argv[2] == "raise":
    raise RuntimeError("no more")
"""


@pytest.mark.parametrize("how", ["return", "raise"])
def test_what_was_not_taken_is_written_when_the_interpreter_exits(how: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), how], capture_output=True, check=False)
    assert done.returncode == (how == "raise")
    for name in ("events", "steps"):
        assert read_rows(tmp_path / name) == [(2, {"value": 1.0})]
