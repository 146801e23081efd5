"""Runs as they are read from metrics.jsonl: resumed, repeated, torn, with holes."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.report_runs import START, export, write_run

from areal_callbacks.report.history import History, read_history
from areal_callbacks.report.snapshots import CAPACITY


def points(history: History, key: str) -> dict[int, float]:
    series = history.series[key]
    return {history.steps[index]: value for index, value in zip(series.indices, series.values)}


def test_every_scalar_at_its_own_steps(tmp_path: Path) -> None:
    exports = [export(step, {"a": step / 4}, **({"loss": float(step)} if step % 2 else {})) for step in (1, 2, 3, 7)]
    history = read_history(write_run(tmp_path, exports, {"every": 1}), "run")
    assert history.steps == [1, 2, 3, 7]
    assert points(history, "a") == {1: 0.25, 2: 0.5, 3: 0.75, 7: 1.75}
    assert points(history, "loss") == {1: 1.0, 3: 3.0, 7: 7.0}
    assert history.name == "run"
    assert history.config == {"every": 1}
    assert history.ended == START + 7
    assert history.resumed_at == []
    assert history.snapshots == []


def test_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    counts = np.ones((1, 2), dtype=int)
    write_run(tmp_path, [export(step, {"a": 1.0, "old": 1.0}, counts) for step in range(1, 9)], {"start": 1})
    file = write_run(tmp_path, [export(step, {"a": 2.0}, 3 * counts) for step in (5, 7)], {"start": 2})
    history = read_history(file, "run")
    assert points(history, "a") == {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 2.0, 7: 2.0}
    assert points(history, "old") == {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert {shot.step: list(shot.counts["", 0]) for shot in history.snapshots} == {
        **{step: [1, 1] for step in (1, 2, 3, 4)},
        **{step: [3, 3] for step in (5, 7)},
    }
    assert history.load_exports == 6
    assert history.resumed_at == [5]
    assert history.config == {"start": 2}


def test_the_clock_tells_when_steps_were_exported(tmp_path: Path) -> None:
    write_run(tmp_path, [export(step, {"a": 1.0}) for step in (1, 2, 10)])
    file = write_run(tmp_path, [export(step, {"a": 2.0}) for step in (4, 12)])
    history = read_history(file, "run")
    assert history.steps == [1, 2, 4, 12]
    assert history.clock.indices == [0, 1, 2, 3]
    # Clocks may be wrong: these exports are older than their run, so the first of them is the beginning.
    assert history.clock.values == [0.0, 1.0, 3.0, 11.0]


def test_a_second_resumption_before_the_first(tmp_path: Path) -> None:
    for first in (1, 6, 4):
        file = write_run(tmp_path, [export(step, {"a": float(first)}) for step in range(first, first + 4)])
    history = read_history(file, "run")
    assert points(history, "a") == {**dict.fromkeys((1, 2, 3), 1.0), **dict.fromkeys((4, 5, 6, 7), 4.0)}
    assert history.resumed_at == [4]


def test_a_run_that_starts_again_in_the_same_folder(tmp_path: Path) -> None:
    write_run(tmp_path, [export(step, {"a": 1.0}) for step in (1, 2, 3)])
    history = read_history(write_run(tmp_path, [export(1, {"a": 2.0})]), "run")
    assert points(history, "a") == {1: 2.0}
    assert history.resumed_at == []


def test_a_repeated_step_keeps_the_later_values(tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(2, {"a": 1.0, "b": 1.0}), export(1, {"a": 0.0}), export(2, {"a": 3.0})])
    history = read_history(file, "run")
    assert history.steps == [1, 2]
    assert points(history, "a") == {1: 0.0, 2: 3.0}
    assert points(history, "b") == {2: 1.0}


def test_numbers_that_are_not_finite_stay(tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(1, {"a": math.nan}), export(2, {"a": math.inf}), export(3, {"a": -math.inf})])
    assert str(points(read_history(file, "run"), "a")) == "{1: nan, 2: inf, 3: -inf}"


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(1, {"a": 1.0})])
    with file.open("a") as lines:
        lines.write('{"kind": "metrics", "step": 2, "ti')
    assert read_history(file, "run").steps == [1]


def test_a_corrupt_line_is_named(tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(1, {"a": 1.0})])
    with file.open("a") as lines:
        lines.write("nonsense\n")
    with pytest.raises(ValueError, match="line 3"):
        read_history(file, "run")


def test_imbalance_of_counts_without_their_scalars(tmp_path: Path) -> None:
    bare = export(1, {}, np.array([[1, 3], [0, 0]]))
    bare.metrics.clear()
    history = read_history(write_run(tmp_path, [bare]), "run")
    assert points(history, "moe_balance/layer_0/max_over_ideal") == {1: 1.5}
    assert points(history, "moe_balance/layer_1/max_over_ideal") == {1: 0.0}


def test_a_long_run_keeps_spread_snapshots_with_the_worst_and_the_last(tmp_path: Path) -> None:
    steps, worst = 5 * CAPACITY + 3, 777
    peak = "moe_balance/max_over_ideal_max"
    exports = (
        export(step, {peak: 2.0 if step == worst else 1.0}, np.array([[step, step]])) for step in range(1, steps + 1)
    )
    history = read_history(write_run(tmp_path, exports), "run")
    kept = [snapshot.step for snapshot in history.snapshots]
    assert kept[0] == 1
    assert kept[-1] == steps
    assert worst in kept
    assert CAPACITY <= len(kept) <= 2 * CAPACITY + 2
    assert max(np.diff(kept)) <= 4
    assert all(list(shot.counts["", 0]) == [shot.step] * 2 for shot in history.snapshots)
    assert history.load_exports == steps


def test_reading_and_building_load_no_torch() -> None:
    """`areal-callbacks report` starts at once."""
    code = "import sys, areal_callbacks.report, areal_callbacks.charts.recovery; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
