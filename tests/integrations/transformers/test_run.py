"""The same numbers in log_history, TensorBoard, W&B and metrics.jsonl, in the Trainer's own row and step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.readback import offline_trackers, single, tensorboard_rows, wandb_file, wandb_history
from support.tiny_trainer import make_trainer, mask_lengths, metric_records, our_rows
from transformers import TrainerCallback

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

__all__ = ["offline_trackers"]

OURS = ("train_perf/", "timeperf/", "moe_balance/", "ppo_actor/", "eval-rollout/")


def ours(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name.startswith(OURS)}


class RecordsStats(TrainerCallback):
    """A user's own statistics, two a step, and one in every evaluation."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with stats_tracker.scope("ppo_actor"):
            stats_tracker.denominator(valid=torch.tensor([True, True, False]))
            stats_tracker.stat(loss=torch.tensor([1.0, 3.0, 99.0]) * state.global_step, denominator="valid")
            stats_tracker.scalar(lr=state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stats_tracker.get("eval-rollout").scalar(reward=float(state.global_step))


def test_all_destinations_carry_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    trainer = make_trainer(
        tmp_path,
        callbacks=[AReaLMetricsCallback(), RecordsStats()],
        report_to=["tensorboard"],
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer.train()
    history = json.loads(json.dumps(trainer.state.log_history, allow_nan=False))
    rows = {row["step"]: ours(row) for row in history if "loss" in row}
    assert list(rows) == [1, 2, 3, 4]
    for step, row in rows.items():
        assert row["ppo_actor/loss/avg"] == 2.0 * step
        assert row["ppo_actor/loss/max"] == 3.0 * step
        assert row["ppo_actor/lr"] == step
        assert row["ppo_actor/valid"] == 2
        assert {"train_perf/tokens", "timeperf/optimizer_step", "moe_balance/layer_1/max_over_ideal"} <= row.keys()
        assert not [name for name in row if name.endswith("__count")]
    written = metric_records(tmp_path)
    assert {record.step: ours(record.metrics) for record in written[:4]} == rows
    for record, host in zip(written, (row for row in history if "loss" in row)):
        assert record.metrics["loss"] == host["loss"]
        assert record.metrics["grad_norm"] == host["grad_norm"]
    assert not [ours(row) for row in history if "eval_loss" in row and ours(row)]
    shown = tensorboard_rows(tmp_path / "tensorboard")
    for step, row in rows.items():
        assert single(row).items() <= shown[step].items()
        assert not [name for name in shown[step] if name.startswith(tuple(f"train/{prefix}" for prefix in OURS))]
        assert "train/loss" in shown[step]


def test_what_a_last_evaluation_records_joins_the_train_runtime_row(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, callbacks=[AReaLMetricsCallback(), RecordsStats()], eval_strategy="steps", eval_steps=2
    )
    trainer.train()
    last = trainer.state.log_history[-1]
    assert "train_runtime" in last
    assert ours(last) == {"eval-rollout/reward": 4.0}  # nothing was trained since the last row
    assert [row["eval-rollout/reward"] for row in trainer.state.log_history if "eval-rollout/reward" in row] == [2, 4]
    assert ours(metric_records(tmp_path)[-1].metrics) == ours(last)


@pytest.mark.slow
@pytest.mark.usefixtures("offline_trackers")
def test_wandb_has_them_in_the_trainers_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    trainer = make_trainer(tmp_path / "out", callbacks=[AReaLMetricsCallback()], report_to=["wandb"])
    trainer.train()
    run_id = wandb.run.id
    wandb.finish()
    history = wandb_history(wandb_file(tmp_path, run_id))
    rows = {row["train/global_step"]: row for row in history if "train/loss" in row}
    assert list(rows) == [1, 2, 3, 4]
    for logged in our_rows(trainer):
        row = rows[logged["step"]]
        assert ours(row).items() >= ours(logged).items()
        assert row["train/loss"] == logged["loss"]
    assert not [name for row in history for name in row if name.startswith(("train/train_perf", "train/moe_balance"))]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"logging_steps": 3, "num_train_epochs": 2}, [3, 6, 8]),  # 8 steps: the tail joins the train_runtime row
        ({"logging_steps": 3, "num_train_epochs": 2, "logging_first_step": True}, [1, 3, 6, 8]),
        ({"logging_strategy": "epoch", "num_train_epochs": 2}, [4, 8]),
        ({"logging_strategy": "no", "num_train_epochs": 2}, [8]),
        ({"logging_steps": 2, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}, [2, 4, 6, 8]),
    ],
)
def test_rows_partition_the_training(options: dict[str, Any], steps: list[int], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback()], **options)
    trainer.train()
    assert_partition(trainer, steps)


def test_every_third_logging_event(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(every=3)], num_train_epochs=2)
    trainer.train()
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == list(range(1, 9))
    assert_partition(trainer, [3, 6, 8])
    assert "train_runtime" in our_rows(trainer)[-1]


def assert_partition(trainer: Any, steps: list[int]) -> None:
    rows = our_rows(trainer)
    assert [row["step"] for row in rows] == steps
    for earlier, row in zip([0, *steps], rows):
        batches = [b for b, s in zip(trainer.batches, trainer.steps_of_batches) if earlier < s <= row["step"]]
        assert row["train_perf/tokens"] == sum(mask_lengths(batches))
        assert row["train_perf/optimizer_steps"] == row["step"] - earlier
        seen = [b for b, s in zip(trainer.batches, trainer.steps_of_batches) if s <= row["step"]]
        assert row["train_perf/total_tokens"] == sum(mask_lengths(seen))
    seconds = math.fsum(row["train_perf/seconds"] for row in rows)
    assert rows[-1]["train_perf/total_seconds"] == pytest.approx(seconds, rel=1e-12)


class AsksForMore(TrainerCallback):
    """Comes after ours and asks for a log that the default flow does not ask for."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_log = control.should_log or state.global_step == 2
        return control


def test_a_later_callback_may_ask_for_a_log(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(), AsksForMore()], logging_steps=3)
    trainer.train()
    assert_partition(trainer, [2, 3, 4])


class Evaluations(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.begun = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begun = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.begun
        self.steps.append(state.global_step)


@pytest.mark.parametrize(
    ("ours_first", "host", "steps"),
    [(True, False, [0, 4]), (True, True, [0, 4]), (False, True, [0, 4]), (False, False, [4])],
)
def test_evaluation_before_training(ours_first: bool, host: bool, steps: list[int], tmp_path: Path) -> None:
    """Once, when every callback has begun, whether asked for here, by the Trainer's eval_on_start, or both."""
    evaluations = Evaluations()
    trainer = make_trainer(
        tmp_path,
        callbacks=[AReaLMetricsCallback(evaluate_before_train=ours_first), evaluations],
        eval_on_start=host,
        eval_strategy="epoch",
    )
    trainer.train()
    assert evaluations.steps == steps
    assert_partition(trainer, [1, 2, 3, 4])
    assert not [row for row in trainer.state.log_history if "eval_loss" in row and ours(row)]


@pytest.mark.parametrize("strategy", ["best", "steps"])
def test_saving_the_best_model(strategy: str, tmp_path: Path) -> None:
    """SaveStrategy.BEST decides after the evaluation, behind all of our boundaries."""
    trainer = make_trainer(
        tmp_path,
        callbacks=[AReaLMetricsCallback()],
        eval_strategy="steps",
        eval_steps=1,
        save_strategy=strategy,
        save_steps=1,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        load_best_model_at_end=True,
        save_total_limit=1,
        logging_steps=2,
    )
    trainer.train()
    assert_partition(trainer, [2, 4])
    best = json.loads(Path(trainer.state.best_model_checkpoint, "trainer_state.json").read_text())
    batches = [b for b, s in zip(trainer.batches, trainer.steps_of_batches) if s <= best["global_step"]]
    saved = best["stateful_callbacks"]["AReaLMetricsCallback"]["attributes"]["saved_totals"]["totals"]
    assert saved["tokens"] == sum(mask_lengths(batches))
    assert saved["optimizer_steps"] == best["global_step"]
