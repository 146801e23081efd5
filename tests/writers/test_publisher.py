"""The publisher: metrics.jsonl at once, the others on one guarded thread, training never held up."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.jsonl import JsonlWriter, MetricsRecord, read_metrics
from areal_callbacks.writers.publisher import Publisher, default_publisher
from areal_callbacks.writers.tensorboard import TensorBoardWriter


class Recorder:
    """A user's writer that remembers what happened, and raises or hangs at the wanted call."""

    def __init__(self, fail_at: str = "", error: type[BaseException] = RuntimeError) -> None:
        self.fail_at = fail_at
        self.error = error
        self.calls: list[str] = []
        self.exports: list[Export] = []
        self.threads: set[str] = set()
        self.closed = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, run: Run) -> None:
        self.act("open")

    def write(self, export: Export) -> None:
        self.exports.append(export)
        self.act(f"write {export.step}")

    def close(self) -> None:
        self.act("close")
        self.closed.set()

    def act(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        self.gate.wait()
        if call == self.fail_at:
            raise self.error(f"cannot {call}")


class Stuck(Recorder):
    """Hangs until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()

    def wait_until_busy(self) -> None:
        deadline = time.monotonic() + 10
        while not self.calls and time.monotonic() < deadline:
            time.sleep(0.001)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "areal_callbacks"]


def steps(folder: Path) -> list[int]:
    records = read_metrics(folder / "metrics.jsonl")
    return [record.step for record in records if isinstance(record, MetricsRecord)]


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
    publisher = Publisher([TensorBoardWriter()], run=Run(tmp_path), synchronous=[JsonlWriter()])
    for step in range(20):
        publisher.publish(Export(step, {"a": step / 2}))
    publisher.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    rows = [(record.step, record.metrics["a"]) for record in read_metrics(tmp_path / "metrics.jsonl")
            if isinstance(record, MetricsRecord)]  # fmt: skip
    assert rows == [(event.step, event.value) for event in events.Scalars("a")] == [(n, n / 2) for n in range(20)]


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


def test_a_forgotten_publisher_ends_in_the_background_without_waiting(tmp_path: Path) -> None:
    here, writer = Recorder(), Stuck()
    publisher = Publisher([writer], run=Run(tmp_path), synchronous=[here])
    publisher.publish(Export(1, {}))
    del publisher
    gc.collect()
    assert here.calls == ["open", "write 1", "close"]
    writer.gate.set()
    assert writer.closed.wait(10)
    assert writer.calls == ["open", "write 1", "close"]


def test_a_queue_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        Publisher([], run=Run(tmp_path), capacity=0)


def test_the_default_is_a_file_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publisher = default_publisher(Run(tmp_path / "new"))
    publisher.publish(Export(1, {"train_perf/tokens": 1234567.0}))
    publisher.close()
    assert steps(tmp_path / "new") == [1]
    out = capsys.readouterr().out
    assert "1,234,567" in out
    assert "metrics.jsonl" in out


PRELUDE = """
import os, sys, time
from pathlib import Path
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.jsonl import JsonlWriter

class Log:
    def open(self, run): self.file = open(run.output_dir / "log", "a")
    def write(self, export): time.sleep(0.01); print(f"write {export.step}", file=self.file)
    def close(self): print("close", file=self.file); self.file.close()

publisher = Publisher([Log()], run=Run(Path(sys.argv[1])), synchronous=[JsonlWriter()])
"""


def run_script(folder: Path, code: str) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_interpreter_exit_flushes(tmp_path: Path) -> None:
    assert run_script(tmp_path, "for step in range(20): publisher.publish(Export(step, {}))") == ""
    assert (tmp_path / "log").read_text().split("\n") == [*(f"write {step}" for step in range(20)), "close", ""]


def test_a_forked_child_neither_writes_nor_closes(tmp_path: Path) -> None:
    code = """
publisher.publish(Export(0, {}))
if os.fork() == 0:
    publisher.publish(Export(1, {}))
    publisher.publish(Export(2, {}))
    sys.exit()
os.wait()
publisher.publish(Export(3, {}))
publisher.close()
"""
    assert run_script(tmp_path, code).count("export of step 1 came from a forked process: not written") == 1
    assert (tmp_path / "log").read_text() == "write 0\nwrite 3\nclose\n"
    assert steps(tmp_path) == [0, 3]


def test_a_child_forked_before_the_first_export_may_publish(tmp_path: Path) -> None:
    code = """
if os.fork() == 0:
    publisher.publish(Export(1, {}))
    sys.exit()
os.wait()
"""
    assert run_script(tmp_path, code) == ""
    assert (tmp_path / "log").read_text() == "write 1\nclose\n"
    assert steps(tmp_path) == [1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    publisher = Publisher([], run=Run(tmp_path), synchronous=[JsonlWriter()])
    publisher.publish(Export(1, {}))
    publisher.publish(Export(2, {}))
    publisher.close()
    assert len(messages(caplog)) == 1
    assert "JsonlWriter failed to open and is switched off: OSError: [Errno 28]" in messages(caplog)[0]
