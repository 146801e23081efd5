"""A trainer whose own methods have the names of TRL's and other types: a list of batches where TRL has a mapping."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.fault_table import Fault, fault
from support.grpo_runs import SMALL
from support.tiny_trainer import fresh_accelerator
from trl import GRPOTrainer

from areal_callbacks.examples.grpo_mismatch import make_trainer
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated:FutureWarning"),
]


class ListsTrainer(GRPOTrainer):
    """Hands a batch on as the only one of a list."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return self._generate_and_score_completions(inputs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return [super()._generate_and_score_completions(inputs)]

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs[0])


def train(folder: Any, *callbacks: Any) -> Any:
    fresh_accelerator()
    with torch._dynamo.config.patch(disable=True):
        trainer = make_trainer(
            str(folder),
            2,
            list(callbacks),
            report_to=[],
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            **SMALL,
        )
        trainer.__class__ = ListsTrainer
        trainer.train()
    return trainer


@fault(Fault("TRL", "a trainer overrides TRL's methods with other types", "no policy diagnostics; the rest stays"))
def test_batches_of_another_kind(tmp_path, caplog):
    plain, measured = train(tmp_path / "plain"), train(tmp_path / "measured", AReaLMetricsCallback(report=False))
    for expected, parameter in zip(plain.model.parameters(), measured.model.parameters()):
        assert torch.equal(expected, parameter)
    rows = [row for row in measured.state.log_history if "loss" in row]
    assert all(row["train_perf/tokens"] > 0 for row in rows)
    assert len(rows) == 2
    assert not [name for row in rows for name in row if name.startswith("ppo_actor/")]
    (message,) = {record.getMessage() for record in caplog.records if record.name == "areal_callbacks"}
    assert "ListsTrainer has methods or batches of its own kind (_generate_and_score_completions)" in message
