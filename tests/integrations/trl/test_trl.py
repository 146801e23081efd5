"""Trainers of TRL that are no policy optimisation keep throughput and MoE balance."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from support.short_training import COMMON
from support.tiny_trainer import fresh_accelerator
from trl import DPOConfig, DPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

from areal_callbacks.examples.grpo_mismatch import correct_digits, make_policy, make_prompts, make_tokenizer
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [
    pytest.mark.slow,
    # TRL calls Transformers under the older names.
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated:FutureWarning"),
]


@pytest.fixture(autouse=True)
def _eager():
    """TRL compiles its loss, which takes longer than the training here."""
    fresh_accelerator()
    with torch._dynamo.config.patch(disable=True):
        yield


def counted(trainer):
    """Recounts, apart from the package, the tokens of the forwards that train."""
    tokens = []

    def count(module, _, kwargs):
        if module.training and torch.is_grad_enabled():
            tokens.append(int(kwargs["attention_mask"].sum()))

    trainer.model.register_forward_pre_hook(count, with_kwargs=True)
    return tokens


def check(trainer, tokens, folder):
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 2
    assert sum(row["train_perf/tokens"] for row in rows) == sum(tokens) > 0
    assert all(row["moe_balance/layer_1/max_over_ideal"] >= 1 for row in rows)
    lines = [json.loads(line) for line in (folder / "areal_metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "expert_loads"] == [1, 2]
    return rows


def test_sft(tmp_path):
    rows = [{"text": "1+2=3" + "+4" * (index % 3)} for index in range(16)]
    trainer = SFTTrainer(
        model=make_policy(),
        args=SFTConfig(output_dir=str(tmp_path), **COMMON),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(),
        callbacks=[AReaLMetricsCallback()],
    )
    tokens = counted(trainer)
    trainer.train()
    found = check(trainer, tokens, tmp_path)
    assert not [name for row in found for name in row if name.startswith("ppo_actor")]


def test_dpo(tmp_path):
    rows = [{"prompt": "1+2=", "chosen": "3", "rejected": "45" * (1 + index % 2)} for index in range(16)]
    trainer = DPOTrainer(
        model=make_policy(),
        ref_model=make_policy(),
        args=DPOConfig(output_dir=str(tmp_path), **COMMON),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(),
        callbacks=[AReaLMetricsCallback()],
    )
    tokens = counted(trainer)
    trainer.train()
    found = check(trainer, tokens, tmp_path)
    assert not [name for row in found for name in row if name.startswith("ppo_actor")]


def test_rloo_also_shows_its_batches(tmp_path):
    trainer = RLOOTrainer(
        model=make_policy(),
        reward_funcs=correct_digits,
        args=RLOOConfig(output_dir=str(tmp_path), num_generations=2, max_completion_length=4, beta=0.0, **COMMON),
        train_dataset=make_prompts(16),
        processing_class=make_tokenizer(),
        callbacks=[AReaLMetricsCallback()],
    )
    tokens = counted(trainer)
    trainer.train()
    for row in check(trainer, tokens, tmp_path):
        assert row["timeperf/rollout"] > 0
        assert row["ppo_actor/n_seqs"] == 4
        assert row["ppo_actor/task_reward/avg"] == pytest.approx(row["reward"], abs=1e-6)
        assert row["ppo_actor/no_eos_ratios/avg"] == pytest.approx(row["completions/clipped_ratio"])
        assert not [name for name in row if name.startswith(("ppo_actor/update", "ppo_actor/train_infer"))]


SCRIPT = """
import sys, torch
from transformers import Trainer, TrainingArguments
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

class Model(torch.nn.Linear):
    def forward(self, x):
        loss = super().forward(x).square().mean()
        return {"loss": loss}

data = [{"x": torch.ones(2)} for _ in range(4)]
args = TrainingArguments(sys.argv[1], max_steps=1, report_to="none", use_cpu=True, save_strategy="no")
Trainer(Model(2, 1), args, train_dataset=data, callbacks=[AReaLMetricsCallback()]).train()
print("trl" in sys.modules)
"""


def test_trl_is_not_imported_where_it_is_not_used(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.splitlines()[-1] == "False"
