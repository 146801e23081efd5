"""Sentence-transformers against the recount."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from support.recount import train_and_recount, written_sum
from support.tiny_trainer import fresh_accelerator
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

st: Any = importlib.import_module("sentence_transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer releases have them in another place
    losses: Any = importlib.import_module("sentence_transformers.losses")

WORDS = ["<pad>", "<unk>", "one", "two", "three", "four", "five"]


def save_encoder(folder: Path) -> str:
    """A tiny BERT and a tokenizer of words."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = {"pad_token": "<pad>", "unk_token": "<unk>", "model_max_length": 32}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return str(folder)


ROWS = [
    {"anchor": " ".join(WORDS[2 : 3 + index % 3]), "positive": " ".join(WORDS[2 : 4 + index % 4])} for index in range(8)
]
TOKENS = sum(len(text.split()) for row in ROWS for text in row.values())


@pytest.mark.parametrize("loss", ["MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"])
def test_pairs_of_sentences(loss: str, tmp_path: Path) -> None:
    """The cached loss embeds without gradients first, and trains in a hook of backward."""
    fresh_accelerator()
    model = st.SentenceTransformer(save_encoder(tmp_path / "model"), device="cpu")
    options = {"mini_batch_size": 2} if loss.startswith("Cached") else {}
    args = st.SentenceTransformerTrainingArguments(
        str(tmp_path / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
    )
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(ROWS),
        loss=getattr(losses, loss)(model, **options),
        callbacks=[AReaLMetricsCallback(report=False)],
    )
    totals = train_and_recount(trainer)
    assert totals.tokens == TOKENS
    assert written_sum(tmp_path) == TOKENS
