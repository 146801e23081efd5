"""What is read of a file while it is written, replaced, cut and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.report_runs import export, write_run

from areal_callbacks.report.history import read_history
from areal_callbacks.watch import FollowedRun


def write_steps(folder: Path, *steps: int) -> Path:
    return write_run(folder, [export(step, {"a": float(step)}) for step in steps])


def test_every_finished_line_is_read_once_whatever_pieces_it_comes_in(tmp_path: Path) -> None:
    """At every byte of a resumed run, what was followed is what reading the file from its beginning gives."""
    write_steps(tmp_path / "whole", 1, 2, 3)
    data = write_steps(tmp_path / "whole", 3, 4).read_bytes()
    file = tmp_path / "part" / "metrics.jsonl"
    file.parent.mkdir()
    run = FollowedRun(file.parent)
    with file.open("wb", buffering=0) as writing:
        for begin in range(0, len(data), 37):
            writing.write(data[begin : begin + 37])
            grown = run.update()
            whole_lines = data[: begin + 37].count(b"\n") - data[:begin].count(b"\n")
            assert grown == (whole_lines > 0)
            finished = tmp_path / "finished.jsonl"
            finished.write_bytes(data[: data[: begin + 37].rfind(b"\n") + 1])
            expected = read_history(finished, "part")
            assert (run.history().steps, run.history().series) == (expected.steps, expected.series)
    assert run.history().steps == [1, 2, 3, 4]
    assert run.history().resumed_at == [3]


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    run = FollowedRun(tmp_path / "later")
    assert not run.update()
    assert run.history().steps == []
    assert run.name == "later"
    write_steps(tmp_path / "later" / "areal_metrics", 1)
    assert run.update()
    assert run.history().steps == [1]


def test_a_file_that_is_removed_and_one_that_takes_its_place(tmp_path: Path) -> None:
    file = write_steps(tmp_path, 1, 2, 3)
    run = FollowedRun(tmp_path)
    run.update()
    file.rename(tmp_path / "old.jsonl")
    assert not run.update()
    assert run.history().steps == [1, 2, 3], "what was there stays"
    write_steps(tmp_path, 10, 11, 12, 13, 14)
    assert run.update()
    assert run.history().steps == [10, 11, 12, 13, 14]
    os.truncate(file, file.read_bytes().index(b"\n") + 1)
    assert run.update()
    assert run.history().steps == []


def test_a_new_training_in_the_same_file_replaces_the_one_before(tmp_path: Path) -> None:
    write_steps(tmp_path, 5, 6)
    run = FollowedRun(tmp_path)
    run.update()
    write_steps(tmp_path, 1)
    assert run.update()
    assert run.history().steps == [1]


def test_a_corrupt_line_is_named(tmp_path: Path) -> None:
    file = write_steps(tmp_path, 1)
    run = FollowedRun(tmp_path)
    run.update()
    with file.open("a") as writing:
        writing.write("nonsense\n")
    with pytest.raises(ValueError, match="line 3: not a valid record"):
        run.update()
    assert run.history().steps == [1]


def test_several_runs_in_a_folder(tmp_path: Path) -> None:
    for name in "ab":
        write_steps(tmp_path / name, 1)
    with pytest.raises(ValueError, match="several runs, choose among"):
        FollowedRun(tmp_path)
