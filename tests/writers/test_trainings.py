"""Fresh trainings in one file stay apart; what resumes goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_callbacks.core.types import Export, Run
from areal_callbacks.report.build import build_report
from areal_callbacks.report.history import read_history, read_trainings
from areal_callbacks.writers.jsonl import JsonlWriter, read_metrics
from areal_callbacks.writers.trainings import number_trainings


def write(folder: Path, *starts: tuple[bool | None, list[int]]) -> Path:
    for number, (resumes, steps) in enumerate(starts):
        writer = JsonlWriter()
        writer.open(Run(folder, resumes=resumes))
        for step in steps:
            writer.write(Export(step, {"a": float(number)}))
        writer.close()
    return folder / "metrics.jsonl"


@pytest.mark.parametrize(
    ("starts", "trainings"),
    [
        ([(False, [1, 2]), (False, [3, 4])], [0, 0, 1, 1]),  # a shorter first trial of a search
        ([(False, [1, 2]), (False, [1, 2]), (False, [1])], [0, 0, 1, 1, 2]),
        ([(False, [1, 2, 3]), (True, [3, 4]), (True, [2])], [0, 0, 0, 0, 0, 0]),
        ([(False, [1, 2]), (True, [1, 2])], [0, 0, 0, 0]),  # resumed from before the first export
        ([(None, [1, 2]), (None, [2, 3]), (None, [1])], [0, 0, 0, 0, 1]),
        ([(False, [1, 2]), (False, []), (True, [3])], [0, 0, 1]),  # the start before it exported nothing
        ([(True, [7, 8])], [0, 0]),
    ],
)
def test_which_training(tmp_path: Path, starts: list[tuple[bool | None, list[int]]], trainings: list[int]) -> None:
    records = number_trainings(read_metrics(write(tmp_path, *starts)))
    assert [training for training, record in records if hasattr(record, "step")] == trainings


def test_a_report_is_of_the_last_training_or_of_every_one(tmp_path: Path) -> None:
    file = write(tmp_path, (False, [1, 2, 3]), (False, [1, 2]), (True, [2, 3]))
    last = read_history(file, "run")
    assert {step: last.series["a"].values[index] for index, step in enumerate(last.steps)} == {1: 1.0, 2: 2.0, 3: 2.0}
    assert last.resumed_at == [2]
    assert [(history.name, history.steps) for history in read_trainings(file, "run")] == [
        ("run (1)", [1, 2, 3]),
        ("run (2)", [1, 2, 3]),
    ]
    for every in (False, True):
        build_report([file], page := tmp_path / f"{every}.html", every_training=every)
        assert (f"{tmp_path.name} (2)" in page.read_text()) is every
