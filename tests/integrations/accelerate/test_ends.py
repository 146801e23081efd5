"""The ways in which a measured training ends: the tail is logged, and the accelerator's own end always comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_accelerate import QUIET, Loop, Rows, column, make_accelerator
from support.tiny_trainer import metric_records

from areal_callbacks import stats_tracker
from areal_callbacks.integrations._accelerate_run import AcceleratorRun
from areal_callbacks.integrations.accelerate import enable
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics


class Finishing(Rows):
    """A tracker that knows whether it was finished."""

    finished = False

    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_the_accelerator_ends_though_ours_breaks_off(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: AcceleratorRun) -> None:
        raise error("planted")

    tracker = Finishing()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    enable(accelerator, **QUIET)
    Loop(accelerator, number=4).run()
    monkeypatch.setattr(AcceleratorRun, "finish", fail)
    if error is RuntimeError:
        accelerator.end_training()
    else:
        with pytest.raises(error, match="planted"):
            accelerator.end_training()
    assert tracker.finished


ENDS: dict[str, Callable[[Any, Any], object]] = {
    "end_training": lambda accelerator, _: accelerator.end_training(),
    "free_memory": lambda accelerator, _: accelerator.free_memory(),
    "finish": lambda _, running: running.finish(),
    "the end of a block": lambda _, running: running.__exit__(None, None, None),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_tail_and_late_records_get_a_row(end: str, tmp_path: Path) -> None:
    tracker = Rows()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    running = enable(accelerator, every=3, **QUIET)
    loop = Loop(accelerator)
    loop.run(lambda step, loss: accelerator.log({"loss": loss}, step=step) if step == 6 else None)  # of 8 steps
    stats_tracker.scalar(late=2.0)
    ENDS[end](accelerator, running)
    rows = [row for _, row in tracker.rows]
    assert [step for step, _ in tracker.rows] == [6, 8]
    assert column(rows, "tokens") == [sum(map(sum, loop.lengths[:6])), sum(map(sum, loop.lengths[6:]))]
    assert [row.get("late") for row in rows] == [None, 2.0]


def test_closing_says_nothing_to_other_ranks_and_loses_nothing_of_one_process(tmp_path: Path) -> None:
    accelerator = make_accelerator(tmp_path)
    running = enable(accelerator, every=3, output_dir=str(tmp_path), **QUIET)
    loop = Loop(accelerator)
    loop.run()
    running.close()
    records = [record for record in read_metrics(tmp_path / "metrics.jsonl") if isinstance(record, MetricsRecord)]
    assert sum(record.metrics["train_perf/tokens"] for record in records) == loop.tokens


def test_batches_after_the_last_optimizer_step_are_counted(tmp_path: Path) -> None:
    """The loop steps every fourth batch of ten."""
    accelerator = make_accelerator(tmp_path)
    enable(accelerator, **QUIET)
    loop, tokens = Loop(accelerator, batch=1, number=10), 0
    for number, batch in enumerate(loop.loader, 1):
        accelerator.backward(loop.model(**batch).loss)
        tokens += int(batch["attention_mask"].sum())
        if number % 4 == 0:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    accelerator.end_training()
    assert sum(column([record.metrics for record in metric_records(tmp_path)], "tokens")) == tokens
