"""One pretraining: rows at Megatron's own iterations, in its own trackers, and totals beside its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.distributed import Ranks
from support.megatron_runs import JOBS, TOKENS, Run, metrics_by_step, tensorboard_series
from support.readback import wandb_file, wandb_history, wandb_table
from support.tiny_megatron import TOP_K
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from areal_callbacks.core.file_names import MEGATRON_TOTALS_FILE as TOTALS
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, read_metrics

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.mark.parametrize("variant", ["training", "older", "with_callbacks"])
def test_metrics_arrive_at_megatrons_iterations(ranks: Ranks, tmp_path: Path, variant: str) -> None:
    run = Run(ranks, tmp_path, "--train-iters", "5", "--log-interval", "2", variant=variant)
    assert run.series("train_perf/tokens") == {2: 2 * TOKENS, 4: 2 * TOKENS, 5: TOKENS}
    assert run.series("train_perf/total_tokens") == {2: 2 * TOKENS, 4: 4 * TOKENS, 5: 5 * TOKENS}
    assert run.series("train_perf/optimizer_steps") == {2: 2, 4: 2, 5: 1}
    assert run.series("train_perf/skipped_steps") == {2: 0, 4: 0, 5: 0}
    # the script records the number of its micro-batch: the mean over an interval of both ranks
    calls = {2: range(1, 9), 4: range(9, 17), 5: range(17, 21)}
    assert run.series("micro_batch") == {step: sum(numbers) / len(numbers) for step, numbers in calls.items()}
    assert set(run.series("lm loss")) == {2, 4}
    for step, metrics in run.metrics.items():
        for name in ("train_perf/seconds", "moe_balance/max_over_ideal_max", "moe_balance/layer_3/max_over_ideal"):
            assert run.series(name)[step] == pytest.approx(metrics[name], rel=1e-6)
    assert run.metrics[2]["lm loss"] == pytest.approx(run.series("lm loss")[2], rel=1e-6)
    loads = [record for record in read_metrics(tmp_path / "metrics.jsonl") if isinstance(record, ExpertLoadsRecord)]
    assert {(record.step, tuple(record.layers)) for record in loads} == {(step, (0, 1, 2, 3)) for step in (2, 4, 5)}
    assert [sum(row) for row in loads[0].counts] == [2 * TOKENS * TOP_K] * 4
    assert [rank["restored"] for rank in run.ranks] == [True, True]


def test_a_callback_passed_by_hand_reads_the_hosts_state(ranks: Ranks, tmp_path: Path) -> None:
    line = ["--pipeline-model-parallel-size", "2", "--tensorboard-dir", str(tmp_path / "tensorboard")]
    line += ["--train-iters", "5", "--save", str(tmp_path / "save")]
    ranks.run_from(JOBS, "pretrain_with_callback", line, {"every": 4})
    series = tensorboard_series(tmp_path / "tensorboard", "train_perf/tokens")
    assert series == {4: 4 * TOKENS, 5: TOKENS}
    assert set(metrics_by_step(tmp_path / "save" / "areal_metrics")) == {4, 5}


def test_weights_and_biases_gets_the_rows_of_megatrons_iterations(ranks: Ranks, tmp_path: Path) -> None:
    save = tmp_path / "save"
    Run(ranks, tmp_path, "--train-iters", "4", "--wandb-exp-name", "tiny", "--save", str(save))
    log = wandb_file(save)
    rows, metrics = {row["_step"]: row for row in wandb_history(log)}, metrics_by_step(tmp_path)
    assert set(rows) == set(metrics) == {2, 4}
    for step, row in rows.items():
        assert {name: row[name] for name in metrics[step] if name in row} == pytest.approx(
            {name: value for name, value in metrics[step].items() if name not in ("learning-rate", "grad-norm")}
        )
        columns, table = wandb_table(log, row)
        assert columns == ["layer", "expert", "tokens", "load_percent"]
        assert sum(line[2] for line in table) == 4 * 2 * TOKENS * TOP_K


def test_images_and_layout_reach_the_same_file(ranks: Ranks, tmp_path: Path) -> None:
    Run(ranks, tmp_path, "--train-iters", "2")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [image.step for image in events.Images("moe_balance/expert_loads")] == [2]
    assert any("custom_scalars" in tag for tag in events.Tags()["tensors"])


def test_every_counts_iterations_and_waits_for_the_row(ranks: Ranks, tmp_path: Path) -> None:
    run = Run(ranks, tmp_path, "--train-iters", "8", "--log-interval", "2", every=3)
    assert run.series("train_perf/tokens") == {4: 4 * TOKENS, 8: 4 * TOKENS}


def test_a_skipped_iteration_is_counted_and_not_timed(ranks: Ranks, tmp_path: Path) -> None:
    run = Run(ranks, tmp_path, "--train-iters", "3", "--log-interval", "3", "--infinite-at", "2")
    (metrics,) = run.metrics.values()
    assert metrics["train_perf/tokens"] == 3 * TOKENS
    assert metrics["train_perf/optimizer_steps"] == 2
    assert metrics["train_perf/skipped_steps"] == 1
    assert metrics["moe_balance/dead_experts"] == 0
    assert 0 < metrics["timeperf/optimizer_step"] < metrics["train_perf/seconds"]


@pytest.mark.parametrize("variant", ["training", "older", "with_callbacks"])
def test_a_run_shorter_than_the_log_interval_is_exported_at_its_end(ranks: Ranks, tmp_path: Path, variant: str) -> None:
    run = Run(ranks, tmp_path, "--train-iters", "3", "--log-interval", "100", variant=variant)
    assert run.series("train_perf/tokens") == {3: 3 * TOKENS}
    assert set(run.metrics) == {3}


@pytest.mark.parametrize("saved", [True, False])
def test_an_exit_keeps_the_tail_in_every_tracker(ranks: Ranks, tmp_path: Path, saved: bool) -> None:
    """Megatron leaves train() by sys.exit when its time is over, and finishes its writers before."""
    save = ("--save", str(tmp_path / "save"), *(("--save-interval", "3") if saved else ()))
    run = Run(ranks, tmp_path, "--train-iters", "9", "--exit-at", "3", "--wandb-exp-name", "early", *save)
    assert [rank["error"] for rank in run.ranks] == ["SystemExit(0)"] * 2
    assert run.series("train_perf/tokens") == {2: 2 * TOKENS, 3: TOKENS}
    rows = [row["train_perf/tokens"] for row in wandb_history(wandb_file(tmp_path / "save"))]
    assert rows == [2 * TOKENS, TOKENS]


@pytest.mark.parametrize("resume", [True, False])
def test_totals_are_saved_beside_the_checkpoints(ranks: Ranks, tmp_path: Path, resume: bool) -> None:
    save = ("--save", str(tmp_path / "save"), "--save-interval", "3")
    first = Run(ranks, tmp_path / "first", "--train-iters", "4", *save)
    saved = json.loads((tmp_path / "save" / TOTALS).read_text())
    assert {iteration: state["totals"]["tokens"] for iteration, state in saved.items()} == {
        "3": 3 * TOKENS,
        "4": 4 * TOKENS,
    }
    assert saved["4"]["totals"]["optimizer_steps"] == 4
    before = first.metrics[4]["train_perf/total_seconds"]
    assert saved["4"]["totals"]["seconds"] == before

    load = ("--load", str(tmp_path / "save"))
    second = Run(ranks, tmp_path / "second", "--train-iters", "6", *load, resume_totals=resume)
    past = 4 * TOKENS if resume else 0
    assert second.series("train_perf/total_tokens") == {6: past + 2 * TOKENS}
    total = second.metrics[6]["train_perf/total_seconds"]
    assert total == pytest.approx((before if resume else 0) + second.metrics[6]["train_perf/seconds"])


def test_totals_that_are_not_there_start_at_zero(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "latest_checkpointed_iteration.txt").write_text("2")
    load = ("--load", str(tmp_path / "save"))
    run = Run(ranks, tmp_path, "--train-iters", "4", *load, resume_totals=True)
    assert run.series("train_perf/total_tokens") == {4: 2 * TOKENS}
    assert any("has no totals of iteration 2" in message for message in run.ranks[0]["messages"])


def test_damaged_totals_start_at_zero(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "latest_checkpointed_iteration.txt").write_text("2")
    damaged = {"totals": {"tokens": "12", "seconds": 1.0, "flops": None, "optimizer_steps": 1}}
    (tmp_path / "save" / TOTALS).write_text(json.dumps({"2": damaged}))
    load = ("--load", str(tmp_path / "save"))
    run = Run(ranks, tmp_path, "--train-iters", "4", *load, resume_totals=True)
    assert run.series("train_perf/total_tokens") == {4: 2 * TOKENS}
    for rank in run.ranks:
        assert len([told for told in rank["messages"] if "the saved totals cannot be read" in told]) == 1
