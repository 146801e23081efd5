"""Whose rows the numbers join, and when."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_accelerate import QUIET, Loop, Rows, column, flops_of, join, make_accelerator, ours
from support.tiny_trainer import metric_records, total_loads

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.accelerate import enable


def test_ours_share_the_row_of_the_loss_and_change_nothing_else(tmp_path):
    tracker = Rows()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    enable(accelerator, **QUIET)
    loop = Loop(accelerator, number=4)
    stats_tracker.scalar(loss=-1.0, mine=3.0)
    loss = torch.tensor(0.5)
    loop.run(lambda step, _: accelerator.log({"loss": loss, "note": "a"}, step, {"rows": {"extra": 1}}))
    accelerator.end_training()
    assert [step for step, _ in tracker.rows] == [1, 2]
    assert all(row["loss"] is loss and row["note"] == "a" and row["extra"] == 1 for _, row in tracker.rows)
    assert tracker.rows[0][1]["mine"] == 3.0
    assert [ours(row) for _, row in tracker.rows] == [ours(record.metrics) for record in metric_records(tmp_path)]
    assert [row["train_perf/tokens"] for _, row in tracker.rows] == [sum(lengths) for lengths in loop.lengths]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_exports_between_two_log_calls_merge(every, tmp_path):
    tracker = Rows()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    enable(accelerator, every=every, flops={"peak_flops": 1e9}, **QUIET)
    loop = Loop(accelerator)

    def log(step: int, loss: float) -> None:
        stats_tracker.scalar(reward=float(step))
        if step % 5 == 0:
            accelerator.log({"loss": loss}, step=100 * step)

    loop.run(log)  # 8 steps
    accelerator.end_training()
    first = 5 // every * every  # what was reduced when the first row was logged
    parts = [loop.lengths[:first], loop.lengths[first:]]
    assert [step for step, _ in tracker.rows] == [500, 503]  # the tail is three steps later
    rows = [row for _, row in tracker.rows]
    assert column(rows, "tokens") == [sum(map(sum, part)) for part in parts]
    assert column(rows, "optimizer_steps") == [first, 8 - first]
    assert column(rows, "estimated_flops") == [flops_of(join(part)) for part in parts]
    for row in rows:
        seconds = row["train_perf/seconds"]
        assert row["train_perf/tokens_per_second"] == pytest.approx(row["train_perf/tokens"] / seconds)
        assert row["train_perf/estimated_flops_per_second"] == pytest.approx(
            row["train_perf/estimated_flops"] / seconds
        )
        assert row["train_perf/mfu"] == pytest.approx(row["train_perf/estimated_flops"] / seconds / 1e9)
        assert row["timeperf/optimizer_step"] < seconds
    assert column(rows, "total_seconds")[-1] == pytest.approx(sum(column(rows, "seconds")))
    np.testing.assert_array_equal(total_loads(tmp_path), loop.recount.counts)
    recorded = [range(1, first), range(first, 9)]  # a step's value comes after its export
    assert [row["reward"] for row in rows] == [pytest.approx(np.mean(values)) for values in recorded]


@pytest.mark.parametrize("given", [False, True])
def test_a_loop_that_never_logs_gets_one_row_at_the_end(given, tmp_path):
    tracker = Rows()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    enable(accelerator, every=3, **QUIET)
    loop = Loop(accelerator)
    loop.run()
    if given:
        accelerator.log({"nothing": 1.0})  # without a step: so has the tail
        loop.run()
    accelerator.end_training()
    assert [step for step, _ in tracker.rows] == ([None, None] if given else [8])
    assert sum(row["train_perf/tokens"] for _, row in tracker.rows) == loop.tokens


def test_evaluation_rows_before_the_first_export_stay_as_they_are(tmp_path):
    tracker = Rows()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    enable(accelerator, **QUIET)
    accelerator.log({"eval_loss": 1.0}, step=0)
    Loop(accelerator)
    accelerator.log({"eval_loss": 2.0}, step=0)
    accelerator.end_training()
    assert tracker.rows == [(0, {"eval_loss": 1.0}), (0, {"eval_loss": 2.0})]


def test_what_is_no_row_passes(tmp_path):
    accelerator = make_accelerator(tmp_path)
    enable(accelerator, **QUIET)
    loop = Loop(accelerator, number=4)
    loop.run(lambda step, _: accelerator.log(None, step))
    accelerator.end_training()
    tokens = [record.metrics["train_perf/tokens"] for record in metric_records(tmp_path)]
    assert sum(tokens) == sum(map(sum, loop.lengths))
