"""What goes wrong while it trains is said once and costs the training nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.distributed import Ranks
from support.readback import messages
from support.reports import collect_messages
from support.tiny_trainer import (
    make_trainer,
    mask_lengths,
    metric_records,
    moe_model,
    our_rows,
)
from torch import nn
from transformers import TrainerCallback

from areal_callbacks import register_flops_estimator
from areal_callbacks.integrations.transformers import AReaLMetricsCallback


class MysteryRouter(nn.Module):
    """Routes as the one it replaces, without telling how many experts it chooses."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.weight = router.weight
        self.num_experts = router.num_experts
        self._chosen = router.top_k

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = hidden.reshape(-1, hidden.shape[-1]) @ self.weight.T
        weights, experts = logits.softmax(-1).topk(self._chosen)
        return logits, weights / weights.sum(-1, keepdim=True), experts


def test_one_warning_names_an_unsupported_router(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = moe_model()
    for layer in model.model.layers:
        layer.mlp.gate = MysteryRouter(layer.mlp.gate)
    trainer = make_trainer(tmp_path, model=model, callbacks=[AReaLMetricsCallback()])
    trainer.train()
    trainer.train()
    (message,) = messages(caplog)
    assert "MysteryRouter" in message
    assert not [name for row in trainer.state.log_history for name in row if name.startswith("moe_balance/")]
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] > 0


def test_a_flops_factory_that_raises_costs_the_flops_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    register_flops_estimator("qwen3_moe", lambda config: config.no_such_field)
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback()])
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert not [name for row in our_rows(trainer) for name in row if "flops" in name]
    (message,) = messages(caplog)
    assert "no_such_field" in message


def broken(**_: torch.Tensor) -> list[int]:
    raise OSError("no lengths today")


def test_a_failing_function_is_said_once_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(token_count_fn=broken)])
    trainer.train()
    assert trainer.state.global_step == 4
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert not [name for row in rows for name in row if "tokens" in name or "flops" in name]
    assert all(row["train_perf/seconds"] > 0 and row["train_perf/optimizer_steps"] == 1 for row in rows)
    assert all("moe_balance/worst_layer" in row for row in rows)
    assert len([message for message in messages(caplog) if "no lengths today" in message]) == 1
    assert len(messages(caplog)) == 2  # the cause, and what it costs


def one_failing_rank(_group: Any, folder: str) -> dict[str, Any]:
    import torch.distributed as dist

    from areal_callbacks import stats_tracker

    class Records(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with stats_tracker.scope("ppo_actor"):
                mask = torch.tensor([True, dist.get_rank() == 0, False])
                stats_tracker.denominator(valid=mask)
                loss = torch.tensor([1.0, 4.0, 99.0]) + 6 * dist.get_rank()
                stats_tracker.stat(loss=loss, denominator="valid")

    counted = (lambda **inputs: inputs["attention_mask"].sum(-1)) if dist.get_rank() == 0 else broken
    trainer = make_trainer(
        folder,
        callbacks=[AReaLMetricsCallback(token_count_fn=counted), Records()],
        report_to=["tensorboard"],
    )
    with collect_messages() as messages:
        trainer.train()
    return {"rows": [row for row in trainer.state.log_history if "loss" in row], "messages": messages}


@pytest.mark.slow
def test_a_count_that_fails_on_one_rank_is_absent_on_both_and_statistics_are_pooled(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    from support.readback import tensorboard_rows

    first, second = two_ranks.run(one_failing_rank, str(tmp_path))
    pooled = {"ppo_actor/loss/avg": 4.0, "ppo_actor/loss/min": 1.0, "ppo_actor/loss/max": 7.0, "ppo_actor/valid": 3.0}
    (events,) = tmp_path.rglob("events.out.*")  # the first rank's alone
    shown = tensorboard_rows(events.parent)
    written = {record.step: record.metrics for record in metric_records(tmp_path)}
    assert [row["step"] for row in first["rows"]] == [1, 2]
    for row, other in zip(first["rows"], second["rows"]):
        assert row == other
        assert not [name for name in row if "tokens" in name or "flops" in name]
        assert row["train_perf/optimizer_steps"] == 1
        assert "moe_balance/worst_layer" in row
        for destination in (row, written[row["step"]], shown[row["step"]]):
            assert destination.items() >= pooled.items()
    assert [len(first["messages"]), len(second["messages"])] == [1, 2]
    assert "no lengths today" in second["messages"][0]
