"""TRL's trainers against the recount."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from support.recount import routed_of, train_and_recount, written_loads, written_sum
from support.short_training import COMMON
from support.tiny_trainer import fresh_accelerator
from transformers import Qwen3MoeForSequenceClassification
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from areal_callbacks.examples.grpo_mismatch import correct_digits, make_policy, make_prompts, make_tokenizer
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # TRL's experimental parts warn that they are

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    """TRL compiles its loss, which takes longer than the training here."""
    fresh_accelerator()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(disable=True):
        yield


def check(trainer: Any, folder: Path) -> None:
    totals = train_and_recount(trainer)
    assert totals.tokens > 0
    assert written_sum(folder) == totals.tokens
    assert written_loads(folder) == routed_of(totals)


def shared(dataset: Any, **options: Any) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows = dataset if isinstance(dataset, Dataset) else Dataset.from_list(dataset)
    callbacks = [AReaLMetricsCallback(report=False)]
    return {"train_dataset": rows, "processing_class": tokenizer, "callbacks": callbacks, **options}


def experimental(name: str, trainer: str) -> tuple[Any, Any]:
    """A trainer and its configuration, wherever this release of TRL keeps them."""
    for place in (f"trl.experimental.{name}", "trl"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(place)
            if hasattr(module, f"{trainer}Trainer"):
                return getattr(module, f"{trainer}Trainer"), getattr(module, f"{trainer}Config")
    pytest.skip(f"this release of TRL has no {trainer}Trainer")


SUMS = [{"text": "1+2=3" + "+4" * (index % 3)} for index in range(16)]
PAIRS = [{"prompt": "1+2=", "chosen": "3", "rejected": "45" * (1 + index % 2)} for index in range(16)]


@pytest.mark.parametrize(
    "options",
    [{}, {"packing": True, "max_length": 16, "packing_strategy": "wrapped"}, {"gradient_checkpointing": False}],
)
def test_sft(options: dict[str, Any], tmp_path: Path) -> None:
    args = SFTConfig(output_dir=str(tmp_path), **COMMON, **options)
    check(SFTTrainer(model=make_policy(), args=args, **shared(SUMS)), tmp_path)


def test_sft_with_an_adapter(tmp_path: Path) -> None:
    from peft import LoraConfig

    adapter = LoraConfig(r=2, target_modules=["q_proj", "embed_tokens"])
    args = SFTConfig(output_dir=str(tmp_path), **COMMON)
    check(SFTTrainer(model=make_policy(), args=args, peft_config=adapter, **shared(SUMS)), tmp_path)


def test_dpo(tmp_path: Path) -> None:
    args = DPOConfig(output_dir=str(tmp_path), **COMMON)
    check(DPOTrainer(model=make_policy(), ref_model=make_policy(), args=args, **shared(PAIRS)), tmp_path)


def test_kto(tmp_path: Path) -> None:
    trainer, config = experimental("kto", "KTO")
    rows = [{"prompt": "1+2=", "completion": "3" * (1 + index % 3), "label": index % 2 == 0} for index in range(16)]
    args = config(output_dir=str(tmp_path), **COMMON)
    check(trainer(model=make_policy(), ref_model=make_policy(), args=args, **shared(rows)), tmp_path)


def test_reward(tmp_path: Path) -> None:
    config = copy.deepcopy(make_policy().config)
    config.num_labels = 1
    rows = [{"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in PAIRS]
    args = RewardConfig(output_dir=str(tmp_path), **COMMON)
    check(RewardTrainer(model=Qwen3MoeForSequenceClassification(config), args=args, **shared(rows)), tmp_path)


@pytest.mark.parametrize(("trainer", "config"), [(GRPOTrainer, GRPOConfig), (RLOOTrainer, RLOOConfig)])
def test_policy_optimisation(trainer: Any, config: Any, tmp_path: Path) -> None:
    args = config(output_dir=str(tmp_path), num_generations=2, max_completion_length=4, beta=0.0, **COMMON)
    policy = {"model": make_policy(), "reward_funcs": correct_digits, "args": args}
    check(trainer(**policy, **shared(make_prompts(16))), tmp_path)


def test_knowledge_distillation(tmp_path: Path) -> None:
    trainer, config = experimental("gkd", "GKD")
    rows = [
        {"messages": [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3" * (1 + index % 2)}]}
        for index in range(16)
    ]
    args = config(output_dir=str(tmp_path), max_new_tokens=4, lmbda=0.5, max_length=32, **COMMON)
    check(trainer(model=make_policy(), teacher_model=make_policy(), args=args, **shared(rows)), tmp_path)


def test_distillation(tmp_path: Path) -> None:
    trainer, config = experimental("distillation", "Distillation")
    args = config(output_dir=str(tmp_path), max_completion_length=4, **COMMON)
    rows = Dataset.from_list([{"prompt": row["prompt"]} for row in make_prompts(16)])
    check(trainer(model=make_policy(), teacher_model=make_policy(), args=args, **shared(rows)), tmp_path)


def test_online_dpo(tmp_path: Path) -> None:
    trainer, config = experimental("online_dpo", "OnlineDPO")
    args = config(output_dir=str(tmp_path), max_new_tokens=4, max_length=32, **COMMON)

    def prefer_long(completions: list[str], **_: Any) -> list[float]:
        return [float(len(completion)) for completion in completions]

    rows = Dataset.from_list([{"prompt": row["prompt"]} for row in make_prompts(16)])
    models = {"model": make_policy(), "ref_model": make_policy(), "reward_funcs": prefer_long}
    check(trainer(args=args, **models, **shared(rows)), tmp_path)
