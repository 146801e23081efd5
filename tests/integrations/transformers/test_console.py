"""What a Trainer prints: its own scalars and a few words; everybody else gets everything."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from support.tiny_trainer import EXPERTS, LAYERS, Sequences, moe_model
from transformers import Trainer, TrainerCallback, TrainingArguments

from areal_callbacks.integrations.transformers import AReaLMetricsCallback


class Rows(TrainerCallback):
    """Stands for a tracker."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.rows.append(dict(logs))


def train(folder: Path, console: Any, *, progress: bool = False) -> tuple[Trainer, Rows]:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=2, max_steps=3, logging_steps=1, save_strategy="no", use_cpu=True,
        report_to=[], disable_tqdm=not progress,
    )  # fmt: skip
    rows = Rows()
    callbacks = [rows, AReaLMetricsCallback(console=console, report=False)]
    trainer = Trainer(moe_model(), arguments, train_dataset=Sequences(), callbacks=callbacks)
    trainer.train()
    return trainer, rows


def printed(text: str) -> list[dict[str, Any]]:
    """The rows of the host among what was printed."""
    return [ast.literal_eval(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("progress", [False, True])
def test_compact_rows_have_words_of_at_most_100_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    trainer, rows = train(tmp_path, "compact", progress=progress)
    shown = printed(capsys.readouterr().out)
    assert len(shown) == 4
    for row in shown[:3]:
        words = row.pop("areal")
        assert len(words) <= 100
        assert f" of {LAYERS * EXPERTS} experts dead" in words
        assert "FLOPs" not in words
        assert "MFU unknown" in words
        assert row.keys() == {"loss", "grad_norm", "learning_rate", "epoch"}
    for whole in (trainer.state.log_history[:3], rows.rows[:3]):
        assert all("moe_balance/layer_0/max_over_ideal" in row and "areal" not in row for row in whole)


def test_full_rows_have_everything_and_off_rows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "full", "full")
    assert all("train_perf/tokens" in row and "areal" not in row for row in printed(capsys.readouterr().out)[:3])
    trainer, _ = train(tmp_path / "off", "off")
    out = capsys.readouterr().out
    assert all(set(row) <= {"loss", "grad_norm", "learning_rate", "epoch"} for row in printed(out)[:3])
    assert "train_perf" not in out
    assert "train_perf/tokens" in trainer.state.log_history[0]
