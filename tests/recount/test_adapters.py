"""Prompts of trained vectors are no text: PEFT's, and those of a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from support.recount import train_beside
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore::FutureWarning")

BODY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES: dict[str, Any] = {"vocab_size": 64, "max_position_embeddings": 64, **BODY}
IDS = torch.tensor([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 0, 0, 0, 0]])  # 5 and 3
MASK = (IDS != 0).long()
LABELS = torch.tensor([[5, 6, 7, 1], [5, 1, -100, -100]])  # 4 and 2
PROMPT = 3

KINDS = {
    "prompt": lambda task: PromptTuningConfig(task_type=task, num_virtual_tokens=PROMPT),
    "p-tuning": lambda task: PromptEncoderConfig(task_type=task, num_virtual_tokens=PROMPT, encoder_hidden_size=8),
    "prefix": lambda task: PrefixTuningConfig(task_type=task, num_virtual_tokens=PROMPT),
}


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, pad_token_id=0, **SIZES))


def t5() -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=64, decoder_start_token_id=0, **sizes))


def bert() -> Any:
    return BertForSequenceClassification(BertConfig(**SIZES))


CASES = {
    "CAUSAL_LM": (llama, {"labels": IDS.masked_fill(IDS == 0, -100)}, 5 + 3),
    "SEQ_2_SEQ_LM": (t5, {"labels": LABELS}, 5 + 3 + 4 + 2),
    "SEQ_CLS": (bert, {"labels": torch.tensor([0, 1])}, 5 + 3),
}


TRAININGS = [(kind, task, has_mask) for kind in KINDS for task in CASES for has_mask in (True, False)]
POSSIBLE = [each for each in TRAININGS if each[1] != "SEQ_CLS" or (each[0] != "prefix" and each[2])]
"""PEFT does not give BERT prefixes, and asks for a mask."""


@pytest.mark.parametrize(("kind", "task", "has_mask"), POSSIBLE)
def test_a_prompt_of_peft_is_no_text(kind: str, task: str, has_mask: bool, tmp_path: Path) -> None:
    make, labels, tokens = CASES[task]
    batch = {"input_ids": IDS, **({"attention_mask": MASK} if has_mask else {}), **labels}
    model = get_peft_model(make(), KINDS[kind](task))
    export, totals = train_beside(model, tmp_path, lambda model: model(**batch).loss)
    assert export.metrics["train_perf/tokens"] == totals.tokens == tokens


@pytest.mark.parametrize("has_mask", [True, False])
def test_a_prompt_of_ones_own_is_no_text(has_mask: bool, tmp_path: Path) -> None:
    """It stands before the text, or between two parts of it."""

    def step(model: Any) -> Tensor:
        words, prompt = model.get_input_embeddings(), torch.zeros(2, PROMPT, 16)
        before = torch.cat([prompt, words(IDS)], 1)
        mask = torch.cat([torch.ones(2, PROMPT).long(), MASK], 1)
        hidden: Tensor = model(inputs_embeds=before, **({"attention_mask": mask} if has_mask else {})).logits
        between = torch.cat([words(IDS[:, :2]), prompt, words(IDS[:, 2:3])], 1)
        return hidden.sum() + model(inputs_embeds=between).logits.sum()

    export, totals = train_beside(llama(), tmp_path, step)
    assert export.metrics["train_perf/tokens"] == totals.tokens == 5 + 3 + 2 * 3


def test_places_of_images_are_positions_of_the_language_model(tmp_path: Path) -> None:
    """Embeddings that are given together with images are wider than the ids because of these."""

    class Captioner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language_model = llama()

        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            words = self.language_model.get_input_embeddings()(input_ids)
            return torch.as_tensor(self.language_model(inputs_embeds=torch.cat([pixel_values, words], 1)).logits.sum())

    export, _ = train_beside(Captioner(), tmp_path, lambda model: model(IDS[:, :3], torch.zeros(2, 4, 16)))
    assert export.metrics["train_perf/tokens"] == 2 * (4 + 3)
