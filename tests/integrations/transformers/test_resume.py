"""Cumulative counters over an interruption, in both restore modes of the Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.distributed import Ranks
from support.readback import messages
from support.tiny_trainer import RecordingTrainer, make_trainer, mask_lengths, metric_records, our_rows, squares

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

RESTORE = "restore_callback_states_from_checkpoint"


def train(folder: Path | str, callbacks: list[Any], *, resume: bool = False, **options: Any) -> RecordingTrainer:
    """Four steps with a checkpoint after the second, or the last two of them."""
    trainer = make_trainer(folder, callbacks=callbacks, save_strategy="steps", save_steps=2, **options)
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if resume else None)
    return trainer


def rows_after(trainer: RecordingTrainer) -> list[dict[str, Any]]:
    return [row for row in our_rows(trainer) if row["step"] > 2]


@pytest.mark.parametrize("resume_totals", [True, False])
@pytest.mark.parametrize("restore", [True, False])
def test_totals_continue_where_asked(restore: bool, resume_totals: bool, tmp_path: Path) -> None:
    whole = train(tmp_path, [AReaLMetricsCallback(resume_totals=resume_totals)])
    before = whole.batches[:4]
    resumed = train(tmp_path, [AReaLMetricsCallback(resume_totals=resume_totals)], resume=True, **{RESTORE: restore})
    after = resumed.batches
    assert [b["input_ids"].tolist() for b in after] == [b["input_ids"].tolist() for b in whole.batches[4:]]
    last, counted = rows_after(resumed)[-1], [*before, *after] if resume_totals else after
    lengths = mask_lengths(counted)
    assert last["train_perf/total_tokens"] == sum(lengths)
    assert sum(row["train_perf/tokens"] for row in rows_after(resumed)) == sum(mask_lengths(after))
    saved = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    totals = saved["stateful_callbacks"]["AReaLMetricsCallback"]["attributes"]["saved_totals"]["totals"]
    seconds = sum(row["train_perf/seconds"] for row in rows_after(resumed)) + resume_totals * totals["seconds"]
    assert last["train_perf/total_seconds"] == pytest.approx(seconds, rel=1e-12)
    rate = last["train_perf/cumulative_estimated_flops_per_second"]
    assert rate == pytest.approx(squares(lengths) / seconds, rel=1e-12)
    assert totals | {"seconds": None} == {
        "tokens": sum(mask_lengths(before)),
        "flops": squares(mask_lengths(before)),
        "optimizer_steps": 2,
        "seconds": None,
    }
    assert [record.step for record in metric_records(tmp_path)] == [1, 2, 3, 4, 3, 4]  # one file, appended


def test_a_checkpoint_holds_whole_totals_between_two_logging_events(tmp_path: Path) -> None:
    trainer = train(tmp_path, [AReaLMetricsCallback()], logging_steps=3)
    saved = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    totals = saved["stateful_callbacks"]["AReaLMetricsCallback"]["attributes"]["saved_totals"]["totals"]
    assert totals["tokens"] == sum(mask_lengths(trainer.batches[:4]))
    assert [row["step"] for row in our_rows(trainer)] == [3, 4]
    assert our_rows(trainer)[0]["train_perf/tokens"] == sum(mask_lengths(trainer.batches[:6]))
    assert our_rows(trainer)[0]["train_perf/optimizer_steps"] == 3


@pytest.mark.parametrize("restore", [True, False])
def test_a_checkpoint_of_a_run_without_the_callback(
    restore: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, [])
    resumed = train(tmp_path, [AReaLMetricsCallback(resume_totals=True)], resume=True, **{RESTORE: restore})
    assert rows_after(resumed)[-1]["train_perf/total_tokens"] == sum(mask_lengths(resumed.batches))
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    totals = saved["stateful_callbacks"]["AReaLMetricsCallback"]["attributes"]["saved_totals"]["totals"]
    assert totals["tokens"] == sum(mask_lengths(resumed.batches))
    assert messages(caplog) == []


WHOLE = {"tokens": 12, "seconds": 1.0, "flops": None, "optimizer_steps": 1}
DAMAGED: dict[str, Any] = {
    "incomplete": {"attributes": {"saved_totals": {"totals": {"tokens": 12}}}},
    "word": {"attributes": {"saved_totals": {"totals": {**WHOLE, "tokens": "12"}}}},
    "no mapping": {"attributes": {"saved_totals": {"totals": [12]}}},
    "nothing": {"attributes": {"saved_totals": {"totals": None}}},
    "no attributes": {"args": {}},
    "a list": [[]],
    "a number": 5,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_checkpoint_with_damaged_totals(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, [AReaLMetricsCallback()])
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    saved = json.loads(path.read_text())
    saved["stateful_callbacks"]["AReaLMetricsCallback"] = DAMAGED[damage]
    path.write_text(json.dumps(saved))
    resumed = train(tmp_path, [AReaLMetricsCallback(resume_totals=True)], resume=True)
    assert rows_after(resumed)[-1]["train_perf/total_tokens"] == sum(mask_lengths(resumed.batches))
    (message,) = messages(caplog)
    assert message.startswith("the saved totals cannot be read, they restart: ")


def labelled(**inputs: torch.Tensor) -> torch.Tensor:
    return (inputs["labels"] != -100).sum(-1) - 1


def test_restoring_keeps_the_configuration_and_the_function(tmp_path: Path) -> None:
    """The Trainer builds a new callback from the checkpoint, which can only name a function."""
    train(tmp_path, [AReaLMetricsCallback(every=2, token_count_fn=labelled)])
    resumed = train(tmp_path, [AReaLMetricsCallback(token_count_fn=labelled)], resume=True, **{RESTORE: True})
    (row,) = rows_after(resumed)
    assert row["step"] == 4
    lengths = mask_lengths(resumed.batches)
    assert row["train_perf/tokens"] == sum(lengths) - len(lengths)


def test_restoring_without_the_function_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def elsewhere(**inputs: torch.Tensor) -> torch.Tensor:
        return labelled(**inputs)

    elsewhere.__qualname__ = f"only_in_{tmp_path.name}"
    train(tmp_path, [AReaLMetricsCallback(token_count_fn=elsewhere)])
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    path.write_text(path.read_text().replace(elsewhere.__qualname__, "gone"))
    resumed = train(tmp_path, [AReaLMetricsCallback()], resume=True, **{RESTORE: True})
    assert rows_after(resumed)[-1]["train_perf/total_tokens"] == sum(mask_lengths(resumed.batches))
    (message,) = messages(caplog)
    assert "token_count_fn" in message
    assert "gone" in message


def resumed_rank(_group: Any, folder: str) -> tuple[list[int], list[int], dict[str, float]]:
    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    whole = train(folder, [AReaLMetricsCallback(resume_totals=True)], max_steps=3)
    resumed = train(folder, [AReaLMetricsCallback(resume_totals=True)], resume=True, max_steps=3)
    return mask_lengths(whole.batches[:4]), mask_lengths(resumed.batches), rows_after(resumed)[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_two_ranks_resume_the_same_totals(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(resumed_rank, str(tmp_path))
    tokens = sum(sum(lengths) for before, after, _ in (first, second) for lengths in (before, after))
    for _, _, row in (first, second):
        assert row["train_perf/total_tokens"] == tokens
    assert first[2]["train_perf/total_seconds"] == second[2]["train_perf/total_seconds"]
