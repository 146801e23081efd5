"""The callback itself: wrong arguments raise at once, and one of them measures a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.readback import messages
from support.tiny_trainer import (
    dense_model,
    load_records,
    make_trainer,
    mask_lengths,
    metric_records,
    our_rows,
)

from areal_callbacks.integrations.transformers import AReaLMetricsCallback


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": 0}, ["every", "0"]),
        ({"every": "often"}, ["every", "often"]),
        ({"moe_balanse": False}, ["moe_balanse", "moe_balance"]),
        ({"moe_balance": {"per_expert_scalars": "sometimes"}}, ["per_expert_scalars", "sometimes", "auto"]),
        ({"moe_balance": {"tables": 3}}, ["tables", "expert_table_every"]),
        ({"config": {"througput": True}}, ["througput", "throughput"]),
        ({"config": "no_such_file.yaml"}, ["no_such_file.yaml"]),
        ({"evaluate_before_train": "yes"}, ["evaluate_before_train", "yes", "True"]),
    ],
)
def test_wrong_arguments_raise_at_construction(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        AReaLMetricsCallback(**options)
    assert not [word for word in named if word not in str(raised.value)]


@pytest.mark.parametrize(
    ("options", "absent", "present"),
    [
        ({"moe_balance": False}, "moe_balance/", "train_perf/tokens"),
        ({"flops": False}, "train_perf/estimated_flops", "train_perf/tokens"),
        ({"throughput": False}, "train_perf/", "moe_balance/worst_layer"),
    ],
)
def test_a_family_that_is_switched_off(options: dict[str, Any], absent: str, present: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(**options)])
    trainer.train()
    for row in (row for row in trainer.state.log_history if "loss" in row):
        assert present in row
        assert not [name for name in row if name.startswith(absent)]


def test_a_dense_model_is_silently_without_moe_balance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, model=dense_model(), callbacks=[AReaLMetricsCallback()])
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert not [name for row in trainer.state.log_history for name in row if name.startswith("moe_balance/")]
    assert not list(load_records(tmp_path))
    assert messages(caplog) == []


def test_a_second_callback_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(), AReaLMetricsCallback()])
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert len(metric_records(tmp_path)) == 4
    (message,) = messages(caplog)
    assert "two metrics callbacks" in message
