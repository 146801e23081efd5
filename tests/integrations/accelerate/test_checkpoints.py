"""``save_state`` and ``load_state``: the totals go on or start anew, and never get in the way of the other states."""

from __future__ import annotations

import json

import pytest
import torch
from support.readback import messages
from support.tiny_accelerate import QUIET, Loop, flops_of, make_accelerator
from support.tiny_trainer import metric_records

from areal_callbacks.integrations.accelerate import enable

TOTALS = "areal_callbacks.json"


def saved(folder, *, measured=True, epochs=2):
    """A checkpoint after some training, and the loop that made it."""
    accelerator = make_accelerator(folder / "first")
    if measured:
        enable(accelerator, **QUIET)
    loop = Loop(accelerator)
    loop.run(epochs=epochs)
    accelerator.save_state(str(folder / "checkpoint"))
    accelerator.end_training()
    return loop


def resumed(folder, **options):
    """The rows of a training that begins with the checkpoint, and its loop."""
    accelerator = make_accelerator(folder / "second")
    enable(accelerator, **QUIET, **options)
    loop = Loop(accelerator)
    accelerator.load_state(str(folder / "checkpoint"))
    loop.run()
    accelerator.end_training()
    return loop, [record.metrics for record in metric_records(folder / "second")]


def test_totals_go_on_together_with_resume_totals(tmp_path):
    first = saved(tmp_path)
    seconds = sum(record.metrics["train_perf/seconds"] for record in metric_records(tmp_path / "first"))
    second, rows = resumed(tmp_path, resume_totals=True)
    last = rows[-1]
    assert last["train_perf/total_tokens"] == first.tokens + second.tokens
    seconds += sum(row["train_perf/seconds"] for row in rows)
    assert last["train_perf/total_seconds"] == pytest.approx(seconds)
    assert last["train_perf/cumulative_tokens_per_second"] == pytest.approx((first.tokens + second.tokens) / seconds)
    flops = flops_of([length for step in first.lengths + second.lengths for length in step])
    assert last["train_perf/cumulative_estimated_flops_per_second"] == pytest.approx(flops / seconds)


def test_without_it_they_start_anew_together(tmp_path):
    saved(tmp_path)
    second, rows = resumed(tmp_path)
    assert rows[-1]["train_perf/total_tokens"] == second.tokens
    assert rows[-1]["train_perf/total_seconds"] == pytest.approx(sum(row["train_perf/seconds"] for row in rows))


def test_loading_before_anything_is_prepared_for_training(tmp_path):
    first = saved(tmp_path, epochs=1)
    accelerator = make_accelerator(tmp_path / "second")
    enable(accelerator, resume_totals=True, **QUIET)
    accelerator.load_state(str(tmp_path / "checkpoint"))
    second = Loop(accelerator)
    second.run()
    accelerator.end_training()
    assert metric_records(tmp_path / "second")[-1].metrics["train_perf/total_tokens"] == first.tokens + second.tokens


def test_a_checkpoint_of_a_run_without_metrics_loads(tmp_path, caplog):
    first = saved(tmp_path, measured=False)
    second, rows = resumed(tmp_path, resume_totals=True)
    assert rows[-1]["train_perf/total_tokens"] == second.tokens
    assert messages(caplog) == [f"{tmp_path / 'checkpoint' / TOTALS} has no totals: they start at zero"]
    assert first.steps == 16


def test_a_checkpoint_with_metrics_loads_without_them(tmp_path):
    first = saved(tmp_path)
    accelerator = make_accelerator(tmp_path / "second")
    loop = Loop(accelerator)
    accelerator.load_state(str(tmp_path / "checkpoint"))
    weights, expected = loop.model.state_dict(), first.model.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


DAMAGED = {
    "torn": "{",
    "list": "[]",
    "incomplete": '{"totals": {"tokens": 1}}',
    "word": '{"totals": {"tokens": "12", "seconds": 1.0, "flops": null, "optimizer_steps": 1}}',
    "negative": '{"totals": {"tokens": 12, "seconds": -1.0, "flops": null, "optimizer_steps": 1}}',
    "nan": '{"totals": {"tokens": 12, "seconds": NaN, "flops": null, "optimizer_steps": 1}}',
    "nothing": '{"totals": null}',
    "binary": "\0\1",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_costs_the_totals_only(content, tmp_path, caplog):
    saved(tmp_path, epochs=1)
    (tmp_path / "checkpoint" / TOTALS).write_text(content)
    second, rows = resumed(tmp_path, resume_totals=True)
    assert rows[-1]["train_perf/total_tokens"] == second.tokens
    (message,) = messages(caplog)
    assert message.startswith(("the totals could not be read from", "the saved totals cannot be read, they restart"))


def test_a_file_that_cannot_be_written_does_not_stop_the_checkpoint(tmp_path, caplog):
    accelerator = make_accelerator(tmp_path / "first")
    enable(accelerator, **QUIET)
    Loop(accelerator).run()
    (tmp_path / "checkpoint" / TOTALS).mkdir(parents=True)
    accelerator.save_state(str(tmp_path / "checkpoint"))
    accelerator.end_training()
    assert (tmp_path / "checkpoint" / "model.safetensors").exists()
    (message,) = messages(caplog)
    assert message.startswith(f"the totals could not be saved in {tmp_path / 'checkpoint'}")


def test_a_process_that_trains_alone_saves_whole_totals(tmp_path):
    accelerator = make_accelerator(tmp_path / "first")
    enable(accelerator, every=3, **QUIET)
    loop = Loop(accelerator)
    loop.run()  # 8 steps, 6 of them exported
    accelerator.save_state(str(tmp_path / "checkpoint"))
    totals = json.loads((tmp_path / "checkpoint" / TOTALS).read_text())["totals"]
    assert totals["tokens"] == sum(map(sum, loop.lengths))
    assert totals["optimizer_steps"] == 8
    accelerator.end_training()
    rows = [(record.step, record.metrics["train_perf/tokens"]) for record in metric_records(tmp_path / "first")]
    parts = {3: loop.lengths[:3], 6: loop.lengths[3:6], 8: loop.lengths[6:]}
    assert rows == [(step, sum(map(sum, part))) for step, part in parts.items()]
