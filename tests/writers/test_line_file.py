"""metrics.jsonl outlives its disk, its folder and its rotation, and never waits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.disks import files_end_at
from support.fault_table import Fault, fault, faults

from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers import line_file
from areal_callbacks.writers.jsonl import JsonlWriter, MetricsRecord, RunRecord, read_metrics


def open_writer(folder: Path) -> JsonlWriter:
    writer = JsonlWriter()
    writer.open(Run(folder, {}))
    return writer


def write(writer: JsonlWriter, *steps: int) -> None:
    for step in steps:
        writer.write(Export(step, {"value": float(step)}))


def steps(folder: Path, name: str = "metrics.jsonl") -> list[int]:
    return [record.step for record in read_metrics(folder / name) if isinstance(record, MetricsRecord)]


def run_lines(folder: Path) -> int:
    return sum(isinstance(record, RunRecord) for record in read_metrics(folder / "metrics.jsonl"))


FILE = "metrics.jsonl"
ROOM = {"0": "the disk is full for a while", "40": "the disk is full in the middle of a row"}


@faults(
    {room: Fault(FILE, broken, "the rows are written when there is room, none torn") for room, broken in ROOM.items()}
)
def test_what_a_full_disk_refused_is_written_when_there_is_room_again(case, tmp_path, caplog):
    writer = open_writer(tmp_path)
    write(writer, 1)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with files_end_at(size + int(case)):
        write(writer, 2, 3)
        assert (tmp_path / "metrics.jsonl").stat().st_size == size, "no torn line stays in the middle"
    write(writer, 4)
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert run_lines(tmp_path) == 1
    writer.close()
    assert len(caplog.messages) == 1
    assert "cannot be written" in caplog.messages[0]


@fault(Fault(FILE, "the disk is full when the run begins", "the rows are written later"))
def test_a_disk_that_is_full_from_the_start_loses_nothing(tmp_path):
    with files_end_at(0):
        writer = open_writer(tmp_path)
        write(writer, 1, 2)
    writer.close()
    assert (steps(tmp_path), run_lines(tmp_path)) == ([1, 2], 1)


@fault(Fault(FILE, "the disk stays full for very long", "what waits is bounded; how many rows are lost is told"))
def test_what_waits_is_bounded_and_what_is_lost_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(line_file, "LIMIT", 250)
    writer = open_writer(tmp_path)
    with files_end_at((tmp_path / "metrics.jsonl").stat().st_size):
        write(writer, *range(1, 9))
    write(writer, 9)
    writer.close()
    kept = steps(tmp_path)
    assert kept == list(range(10 - len(kept), 10))
    assert 1 <= len(kept) < 5
    assert caplog.messages[-1].startswith(f"{9 - len(kept)} exports could not be written")


@fault(Fault(FILE, "its folder is deleted during the run", "it is made again"))
def test_a_deleted_folder_is_made_again(tmp_path):
    folder = tmp_path / "run" / "areal_metrics"
    writer = open_writer(folder)
    write(writer, 1)
    shutil.rmtree(tmp_path / "run")
    write(writer, 2)
    writer.close()
    assert (steps(folder), run_lines(folder)) == ([2], 1)


@faults(
    {
        "moved": Fault(FILE, "the file is moved away", "a new one is begun"),
        "replaced": Fault(FILE, "the file is rotated: moved away and made anew", "rows go to the new one"),
    }
)
def test_a_rotated_file_is_begun_anew(case, tmp_path):
    writer = open_writer(tmp_path)
    write(writer, 1)
    os.replace(tmp_path / "metrics.jsonl", tmp_path / "metrics.jsonl.1")
    if case == "replaced":
        (tmp_path / "metrics.jsonl").touch()
    write(writer, 2)
    writer.close()
    assert steps(tmp_path, "metrics.jsonl.1") == [1]
    assert (steps(tmp_path), run_lines(tmp_path)) == ([2], 1)


@fault(Fault(FILE, "a file stands where its folder should be, for a while", "the rows are written later"))
def test_a_folder_that_appears_later_takes_everything(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    writer = open_writer(tmp_path / "run")
    write(writer, 1)
    (tmp_path / "run").unlink()
    write(writer, 2)
    writer.close()
    assert steps(tmp_path / "run") == [1, 2]


@pytest.mark.timeout(20)
@fault(Fault(FILE, "it is a pipe, with or without a reader", "nothing waits, nothing is written into it"))
def test_a_pipe_holds_nothing_up_and_is_not_written_to(tmp_path, caplog):
    os.mkfifo(tmp_path / "metrics.jsonl")
    writer = open_writer(tmp_path)
    write(writer, 1)
    reader = os.open(tmp_path / "metrics.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    write(writer, 2)
    assert os.read(reader, 100) == b""
    os.close(reader)
    (tmp_path / "metrics.jsonl").unlink()
    writer.close()
    assert steps(tmp_path) == [1, 2]
    assert len(caplog.messages) == 1


@fault(Fault(FILE, "Ctrl-C in the middle of a row", "no row is torn or repeated"))
def test_an_interrupt_in_the_middle_of_a_line_repeats_nothing(tmp_path, monkeypatch):
    writer = open_writer(tmp_path)
    original = os.write

    def interrupted(descriptor: int, block: bytes) -> int:
        original(descriptor, bytes(block)[:10])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(writer, 1)
    write(writer, 2)
    writer.close()
    assert steps(tmp_path) == [1, 2]
