"""The publisher: metrics.jsonl at once, the others on guarded threads, training never delayed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.readback import jsonl_rows, messages, tensorboard_rows
from support.recorder import Recorder, Stuck

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import TensorBoardConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.tensorboard import TensorBoardWriter


def steps(folder: Path) -> list[int]:
    return list(jsonl_rows(folder))


def test_synchronous_writers_run_here_and_the_others_in_order_on_one_thread(tmp_path: Path) -> None:
    here, first, second = Recorder(), Recorder(), Recorder()
    publisher = Publisher([first, second], run=Run(tmp_path), synchronous=[here])
    for step in range(5):
        publisher.publish(Export(step, {}))
        assert here.calls[-1] == f"write {step}"
    publisher.close()
    expected = ["open", *(f"write {step}" for step in range(5)), "close"]
    assert here.calls == first.calls == second.calls == expected
    assert here.threads == {threading.current_thread().name}
    assert first.threads == second.threads
    assert len(first.threads | here.threads) == 2


def test_without_an_export_nothing_opens_and_no_thread_starts(tmp_path: Path) -> None:
    writer, here = Recorder(), JsonlWriter()
    before = threading.active_count()
    Publisher([writer], run=Run(tmp_path), synchronous=[here]).close()
    assert (writer.calls, list(tmp_path.iterdir()), threading.active_count()) == ([], [], before)


def test_real_writers_end_up_with_the_same_numbers(tmp_path: Path) -> None:
    publisher = Publisher(
        [TensorBoardWriter(TensorBoardConfig(), MoEBalanceConfig())], run=Run(tmp_path), synchronous=[JsonlWriter()]
    )
    for step in range(20):
        publisher.publish(Export(step, {"a": step / 2}))
    publisher.close()
    expected = {step: {"a": step / 2} for step in range(20)}
    assert jsonl_rows(tmp_path) == tensorboard_rows(tmp_path / "tensorboard") == expected


@pytest.mark.parametrize("fail_at", ["open", "write 1", "close"])
@pytest.mark.parametrize("error", [RuntimeError, OSError, SystemExit])
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_failing_writer_is_named_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fail_at: str, error: type[BaseException], synchronous: bool
) -> None:
    bad, good = Recorder(fail_at, error), Recorder()
    if synchronous:
        publisher = Publisher([good], run=Run(tmp_path), synchronous=[bad, JsonlWriter()])
    else:
        publisher = Publisher([bad, good], run=Run(tmp_path), synchronous=[JsonlWriter()])
    for step in range(4):
        publisher.publish(Export(step, {}))
    publisher.close()
    assert [export.step for export in good.exports] == steps(tmp_path) == [0, 1, 2, 3]
    assert messages(caplog) == [
        f"Recorder failed to {fail_at.split()[0]} and is switched off: {error.__name__}: cannot {fail_at}"
    ]
    survived = {"open": ["open", "close"], "write 1": ["open", "write 0", "write 1", "close"]}
    assert bad.calls == survived.get(fail_at, [*good.calls])


def test_a_keyboard_interrupt_reaches_the_user(tmp_path: Path) -> None:
    publisher = Publisher([], run=Run(tmp_path), synchronous=[Recorder("write 0", KeyboardInterrupt)])
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(Export(0, {}))
    publisher.close()


def test_an_interrupted_end_can_be_completed(tmp_path: Path) -> None:
    impatient, guest, tracker = Recorder("close", KeyboardInterrupt), Recorder(), Recorder()
    publisher = Publisher([], run=Run(tmp_path), synchronous=[impatient, guest], trackers=[tracker])
    publisher.publish(Export(0, {}))
    with pytest.raises(KeyboardInterrupt):
        publisher.close()
    impatient.fail_at = ""
    publisher.close()
    publisher.close()
    assert guest.calls == tracker.calls == ["open", "write 0", "close"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["", "open", "write 0", "write 2", "close"]), max_size=4))
def test_any_mixture_of_failures_leaves_the_healthy_writers_complete(tmp_path: Path, failures: list[str]) -> None:
    writers = [Recorder(fail_at) for fail_at in failures]
    publisher = Publisher(writers, run=Run(tmp_path))
    for step in range(3):
        publisher.publish(Export(step, {}))
    publisher.close()
    for writer in writers:
        assert len(writer.exports) == {"open": 0, "write 0": 1}.get(writer.fail_at, 3)
        assert writer.calls.count("close") == 1


def test_a_tracker_that_is_not_installed_says_how_to_get_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Tracker(Recorder):
        def open(self, run: Run) -> None:
            raise ModuleNotFoundError("No module named 'trackio'", name="trackio")

    publisher = Publisher([Tracker()], run=Run(tmp_path))
    publisher.publish(Export(0, {}))
    publisher.close()
    assert messages(caplog)[0].endswith("No module named 'trackio'; pip install 'areal-callbacks[trackio]'")


def test_a_quick_loop_loses_nothing_while_a_tracker_takes_its_time_to_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Stuck()
    publisher = Publisher([], run=Run(tmp_path), trackers=[opening])
    for step in range(1000):
        publisher.publish(Export(step, {}))
    opening.gate.set()
    publisher.close()
    assert [export.step for export in opening.exports] == list(range(1000))
    assert messages(caplog) == []


def test_a_hanging_writer_never_holds_up_the_caller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck()
    publisher = Publisher([stuck], run=Run(tmp_path), synchronous=[JsonlWriter()], capacity=4)
    publisher.publish(Export(0, {"a": 1.0}))
    stuck.wait_until_busy()
    begin = time.perf_counter()
    for step in range(1, 200):
        publisher.publish(Export(step, {"a": 1.0}))
    assert time.perf_counter() - begin < 2
    assert steps(tmp_path) == list(range(200))
    assert len(messages(caplog)) == 1
    assert "Stuck is too slow: 4 exports wait" in messages(caplog)[0]
    begin = time.perf_counter()
    publisher.close(timeout=0.2)
    assert 0.1 < time.perf_counter() - begin < 2
    publisher.close()
    assert time.perf_counter() - begin < 2
    (_, losses) = messages(caplog)
    assert "Stuck did not finish within 0.2 s" in losses
    dropped = int(losses.split(" exports were dropped")[0].split()[-1])
    assert dropped == 195
    stuck.gate.set()


def test_a_slow_writer_that_catches_up_reports_how_many_it_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Stuck()
    publisher = Publisher([slow], run=Run(tmp_path), capacity=2)
    publisher.publish(Export(0, {}))
    slow.wait_until_busy()
    for step in range(1, 10):
        publisher.publish(Export(step, {}))
    slow.gate.set()
    publisher.close()
    assert "7 exports were dropped" in messages(caplog)[-1]
    assert slow.calls == ["open", "write 0", "write 1", "write 2", "close"]


def test_after_the_end_an_export_is_reported_once_and_not_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher([Recorder()], run=Run(tmp_path), synchronous=[JsonlWriter()])
    publisher.publish(Export(1, {}))
    publisher.close()
    publisher.close()
    publisher.publish(Export(2, {}))
    publisher.publish(Export(3, {}))
    assert messages(caplog) == ["export of step 2 came after the end: not written"]
    assert steps(tmp_path) == [1]


def test_the_caller_may_reuse_its_dictionaries(tmp_path: Path) -> None:
    slow = Stuck()
    publisher = Publisher([slow], run=Run(tmp_path))
    metrics, host = {"a": 1.0}, {"loss": 1.0}
    publisher.publish(Export(1, metrics, None, host))
    metrics.clear()
    host["loss"] = 2.0
    slow.gate.set()
    publisher.close()
    assert (slow.exports[0].metrics, slow.exports[0].host) == ({"a": 1.0}, {"loss": 1.0})


def test_a_queue_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        Publisher([], run=Run(tmp_path), capacity=0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_device_in_place_of_the_file_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    publisher = Publisher([], run=Run(tmp_path), synchronous=[JsonlWriter()])
    publisher.publish(Export(1, {}))
    publisher.publish(Export(2, {}))
    publisher.close()
    assert [("is no regular file" in message, "2 exports" in message) for message in messages(caplog)] == [
        (True, False),
        (False, True),
    ]
