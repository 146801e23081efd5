"""What a user records under AReaL's names inside a Hugging Face Trainer reaches the Trainer's own logs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from areal_callbacks import stats_tracker

pytestmark = pytest.mark.slow


def values_of(rank: int, step: int) -> list[float]:
    """Other numbers of tokens and other values on every rank and at every step."""
    return [10.0 * rank + step + index for index in range(1 + rank + step)]


def train(_group: Any, folder: str) -> list[dict[str, Any]]:
    import torch.distributed as dist
    from support.tiny_trainer import make_trainer
    from transformers import TrainerCallback

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    rank = dist.get_rank()

    class UserCode(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            values = torch.tensor([*values_of(rank, state.global_step), math.nan])
            mask = ~torch.isnan(values)
            with stats_tracker.scope("ppo_actor"):
                stats_tracker.denominator(n_valid_tokens=mask)
                stats_tracker.stat(advantages=values, denominator="n_valid_tokens")
                with stats_tracker.scope("update"):
                    stats_tracker.stat(entropy=2 * values, denominator="n_valid_tokens")

    options = {"callbacks": [AReaLMetricsCallback(), UserCode()], "report_to": ["tensorboard"]}
    trainer = make_trainer(folder, max_steps=3, **options)
    trainer.train()
    return trainer.state.log_history


def test_a_users_own_statistics_arrive_pooled_over_two_ranks(two_ranks, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

    histories = two_ranks.run(train, str(tmp_path), timeout=150)
    (path,) = tmp_path.rglob("metrics.jsonl")
    in_file = {record.step: record.metrics for record in read_metrics(path) if isinstance(record, MetricsRecord)}
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events)).Reload()
    on_board = {
        name: {event.step: event.value for event in accumulator.Scalars(name)} for name in accumulator.Tags()["scalars"]
    }
    for step in (1, 2, 3):
        pooled = [value for rank in (0, 1) for value in values_of(rank, step - 1)]
        expected = {
            "ppo_actor/n_valid_tokens": float(len(pooled)),
            "ppo_actor/advantages/avg": sum(pooled) / len(pooled),
            "ppo_actor/advantages/min": min(pooled),
            "ppo_actor/advantages/max": max(pooled),
            "ppo_actor/update/entropy/avg": 2 * sum(pooled) / len(pooled),
        }
        for history in histories:
            (row,) = (row for row in history if row["step"] == step and "loss" in row)
            assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-12)
        assert {name: in_file[step][name] for name in expected} == pytest.approx(expected, rel=1e-12)
        assert {name: on_board[name][step] for name in expected} == pytest.approx(expected, rel=1e-6)
