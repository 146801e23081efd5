"""When exports of hosts without a common log call are reduced, merged, handed over and written."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from support.sessions import open_session, read_rows

from areal_callbacks import MetricsSession
from areal_callbacks.session.step_exports import StepExports


def read_values(folder: Path) -> list[tuple[int, float]]:
    """Step and value of every row."""
    return [(step, row["value"]) for step, row in read_rows(folder)]


def record_and_step(run: MetricsSession, exports: StepExports, value: float) -> None:
    run.tracker.scalar(value=value)
    exports.boundary()


def test_steps_merge_until_the_host_logs(tmp_path):
    with open_session(tmp_path, every=2) as run:
        exports = StepExports(run)
        for value in (1.0, 2.0, 3.0, 4.0, 5.0):
            record_and_step(run, exports, value)
        assert exports.metrics(50) == {"value": 2.5}  # the fifth is not reduced yet
        assert exports.metrics(51) == {}
        exports.finish()
        assert exports.metrics(None) == {"value": 5.0}
        assert exports.progress == 5
    assert read_values(tmp_path) == [(50, 2.5), (5, 5.0)]


def test_what_is_recorded_after_the_last_step_comes_with_the_end(tmp_path):
    with open_session(tmp_path) as run:
        exports = StepExports(run)
        record_and_step(run, exports, 1.0)
        exports.metrics(1)
        run.tracker.scalar(value=7.0)
        exports.reduce()
        assert exports.metrics(2) == {}
        exports.finish()
        assert exports.metrics(3) == {"value": 7.0}


def test_without_a_tracker_every_reduction_is_a_row(tmp_path):
    with open_session(tmp_path, every=2) as run:
        exports = StepExports(run, files_only=True)
        for value in range(1, 6):
            record_and_step(run, exports, float(value))
        assert read_values(tmp_path) == [(2, 1.5)]  # the next waits for a log call that might bring the loss
        exports.metrics(1000, {"loss": 0.5})
        assert read_values(tmp_path) == [(2, 1.5), (5, 3.5)]
        exports.reduce()
        exports.flush()
    assert read_values(tmp_path) == [(2, 1.5), (5, 3.5), (5, 5.0)]
    assert [row.get("loss") for _, row in read_rows(tmp_path)] == [None, 0.5, None]


def test_uneven_ranks_meet_at_the_end_and_count_anew(tmp_path):
    with open_session(tmp_path, every=2) as run:
        exports = StepExports(run)
        exports.begin_uneven()
        for value in (1.0, 2.0, 3.0):
            record_and_step(run, exports, value)
        assert not run.has_pending
        exports.end_uneven(is_complete=True)
        assert exports.metrics(3) == {"value": 2.0}
        record_and_step(run, exports, 4.0)
        assert exports.metrics(4) == {}
        record_and_step(run, exports, 5.0)
        assert exports.metrics(5) == {"value": 4.5}


def test_uneven_ranks_do_not_meet_after_an_exception(tmp_path):
    with open_session(tmp_path) as run:
        exports = StepExports(run)
        exports.begin_uneven()
        record_and_step(run, exports, 1.0)
        exports.end_uneven(is_complete=False)
        assert not run.has_pending


@pytest.mark.parametrize(
    ("logged", "then", "expected"),
    [
        ([], 3, 3),  # never logged: the number of steps
        ([(None, True)], 2, None),  # no steps in the host's rows
        ([(100, True)], 2, 102),
        ([(100, True)], 0, 101),  # never over a row of ours
        ([(100, False)], 0, 100),
    ],
)
def test_the_step_of_the_tail(logged, then, expected, tmp_path):
    with open_session(tmp_path) as run:
        exports = StepExports(run)
        for step, is_ours in logged:
            if is_ours:
                record_and_step(run, exports, 1.0)
            exports.metrics(step)
        for _ in range(then):
            record_and_step(run, exports, 1.0)
        assert exports.tail_step == expected


def _do_nothing() -> None:
    pass


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the run's own threads do not matter here
def test_a_forked_worker_writes_nothing_when_it_ends(tmp_path):
    with open_session(tmp_path) as run:
        exports = StepExports(run)
        record_and_step(run, exports, 1.0)
        worker = multiprocessing.get_context("fork").Process(target=_do_nothing)
        worker.start()
        worker.join(30)
        assert worker.exitcode == 0
        assert read_values(tmp_path) == []
