"""Packings whose padding is numbered like a sequence, without a mask: tokens against the lengths of what was packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_trainer import VOCABULARY, make_trainer, moe_model, our_rows
from tokenizers import Tokenizer, models
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

LENGTHS = (3, 5, 2, 7, 4, 6, 3, 5)
PAD = 2


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.randint(3, VOCABULARY, (LENGTHS[index],))}


class Packs:
    """Joins the rows of a batch and fills up to 24 tokens, as axolotl does; attributes tell the number of padding."""

    def __init__(self, **told: Any) -> None:
        vars(self).update(told)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        texts = [row["input_ids"] for row in rows]
        padding = torch.full((24 - sum(map(len, texts)),), PAD)
        labels = torch.cat([*texts, torch.full_like(padding, -100)])
        positions = torch.cat([torch.arange(len(part)) for part in (*texts, padding)])
        return {
            "input_ids": torch.cat([*texts, padding])[None],
            "labels": labels[None],
            "position_ids": positions[None],
        }


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {"a": 0, "b": 1, "<pad>": PAD}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "a")), pad_token="<pad>")


def count(folder: Path, collator: Packs) -> float:
    torch.manual_seed(0)
    model = moe_model()
    assert model.config.pad_token_id is None
    trainer = make_trainer(folder, model=model, data=Rows(), collator=collator, callbacks=[AReaLMetricsCallback()])
    trainer.train()
    return our_rows(trainer)[-1]["train_perf/total_tokens"]


@pytest.mark.parametrize("told", ["pad_token_id", "tokenizer"])
def test_the_collator_names_the_padding(told: str, tmp_path: Path) -> None:
    """The configuration does not, and the Trainer has no tokenizer from which it would take it."""
    value = PAD if told == "pad_token_id" else make_tokenizer()
    assert count(tmp_path, Packs(**{told: value})) == sum(LENGTHS)


def test_nothing_names_the_padding(tmp_path: Path) -> None:
    batches = len(LENGTHS) // 2
    assert count(tmp_path, Packs()) == batches * 24
