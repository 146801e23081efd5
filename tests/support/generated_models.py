"""The models of trainings that are built out of parts: Transformers', and two of nobody's library."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from support.generated_batches import VOCABULARY
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 4}


class Own(nn.Module):
    """A model of nobody's library."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8, padding_idx=0), nn.Linear(8, VOCABULARY)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        logits: Tensor = self.head(self.embedding(input_ids))
        return logits


class Pair(nn.Module):
    """Another one, of two texts with a mask each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.context = nn.Embedding(VOCABULARY, 8), nn.Embedding(VOCABULARY + 1, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(
        self,
        input_ids: Tensor,
        context_ids: Tensor,
        attention_mask: Tensor | None = None,
        context_padding_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        logits: Tensor = self.head(self.embedding(input_ids) + self.context(context_ids).mean())
        return logits


@functools.cache
def prototype(name: str) -> nn.Module:
    """A model to copy."""
    torch.manual_seed(0)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZES))
    if name == "moe":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(num_key_value_heads=2, **EXPERTS, **SIZES))
    if name == "bert":
        return BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SIZES))
    if name == "t5":
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
        return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes))
    return Own() if name == "own" else Pair()


def make_model(name: str) -> nn.Module:
    """A fresh one, in training mode."""
    return copy.deepcopy(prototype(name)).train()
