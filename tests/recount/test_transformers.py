"""Hugging Face's Trainer with models of every kind, against the recount and a hand computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.recount import routed_of, train_and_recount, written_loads, written_sum
from support.tiny_moe import tiny_model
from support.tiny_trainer import fresh_accelerator
from torch import nn
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning:transformers"),
]

TEXT = {"vocab_size": 64, "d_model": 16}
BODY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
MASK = (IDS != 0).long()
LABELS = torch.tensor([[5, 6, 1], [5, 1, -100]])


def train(folder: Path, model: nn.Module, batch: dict[str, Any], **options: Any) -> Any:
    """Two steps on the same batch."""
    fresh_accelerator()
    values = {"max_steps": 2, "logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no"}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(folder), per_device_train_batch_size=1, disable_tqdm=True, **values, **options),
        train_dataset=[batch] * 2,
        data_collator=lambda rows: rows[0],
        callbacks=[AReaLMetricsCallback(report=False)],
    )
    return train_and_recount(trainer)


def t5() -> nn.Module:
    sizes = {"d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **TEXT, **sizes))


def whisper() -> nn.Module:
    side = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
    sides = {f"{kind}_{name}": value for kind in ("encoder", "decoder") for name, value in side.items()}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    limits = {"max_source_positions": 10, "max_target_positions": 16, "num_mel_bins": 8}
    return WhisperForConditionalGeneration(WhisperConfig(**TEXT, **sides, **ends, **limits))


def vit() -> nn.Module:
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, **BODY))


def choice() -> nn.Module:
    return BertForMultipleChoice(BertConfig(vocab_size=64, max_position_embeddings=16, **BODY))


CHOICES = torch.tensor([[[5, 6, 7, 0], [5, 6, 0, 0], [5, 6, 7, 8]]])
CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "t5": (t5, {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}, 5 + 5),
    "whisper": (whisper, {"input_features": torch.randn(2, 8, 20), "labels": LABELS}, 5),
    "vit": (vit, {"pixel_values": torch.randn(2, 1, 8, 8), "labels": torch.tensor([0, 1])}, 0),
    "choice": (
        choice,
        {"input_ids": CHOICES, "attention_mask": (CHOICES != 0).long(), "labels": torch.tensor([0])},
        9,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_models_of_other_kinds(name: str, tmp_path: Path) -> None:
    build, batch, tokens = CASES[name]
    torch.manual_seed(0)
    totals = train(tmp_path, build(), batch)
    assert totals.tokens == 2 * tokens
    assert written_sum(tmp_path) == totals.tokens


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_mixture_of_experts(reentrant: bool, tmp_path: Path) -> None:
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    batch = {"input_ids": IDS, "attention_mask": MASK, "labels": IDS}
    totals = train(tmp_path, tiny_model("qwen3_moe"), batch, **options)
    assert totals.tokens == written_sum(tmp_path) == 2 * 5
    assert written_loads(tmp_path) == routed_of(totals)
    assert all(sum(counts) == 2 * 8 * 2 for counts in totals.routed.values())
