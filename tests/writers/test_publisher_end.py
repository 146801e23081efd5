"""The end of a publisher: forgotten, at the exit of the interpreter, or in a forked child."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

from support.readback import jsonl_rows
from support.recorder import Recorder, Stuck, wait_until

from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.publisher import Publisher


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


def test_a_forgotten_publisher_is_freed_with_its_writers_once_its_last_export_is_written(tmp_path: Path) -> None:
    here, slow = Recorder(), Stuck()
    publisher = Publisher([], run=Run(tmp_path), synchronous=[here], trackers=[slow])
    publisher.publish(Export(1, {}))
    slow.wait_until_busy()
    gate, references = slow.gate, [weakref.ref(here), weakref.ref(slow)]
    del publisher, here, slow
    assert references[1]() is not None
    gate.set()
    wait_until(lambda: [reference() for reference in references] == [None, None])


def test_a_closed_publisher_keeps_nothing(tmp_path: Path) -> None:
    here, slow = Recorder(), Recorder()
    publisher = Publisher([], run=Run(tmp_path), synchronous=[here], trackers=[slow])
    publisher.publish(Export(1, {}))
    publisher.close()
    references = [weakref.ref(here), weakref.ref(slow)]
    del publisher, here, slow
    assert [reference() for reference in references] == [None, None]


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


def test_the_interpreter_exit_waits_for_a_forgotten_publisher(tmp_path: Path) -> None:
    code = """
for step in range(20): publisher.publish(Export(step, {}))
del publisher
"""
    assert run_script(tmp_path, code) == ""
    assert (tmp_path / "log").read_text().split("\n") == [*(f"write {step}" for step in range(20)), "close", ""]
    assert list(jsonl_rows(tmp_path)) == list(range(20))


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
    assert list(jsonl_rows(tmp_path)) == [0, 3]


def test_a_child_forked_before_the_first_export_may_publish(tmp_path: Path) -> None:
    code = """
if os.fork() == 0:
    publisher.publish(Export(1, {}))
    sys.exit()
os.wait()
"""
    assert run_script(tmp_path, code) == ""
    assert (tmp_path / "log").read_text() == "write 1\nclose\n"
    assert list(jsonl_rows(tmp_path)) == [1]
