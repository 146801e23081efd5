"""Loops that call the ``forward`` of a model, or of a part of it, so that no module is called that could be hooked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recount import loads_of, routed_of, train_beside
from support.tiny_moe import tiny_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from areal_callbacks.safety.reporting import logger

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")

IDS = torch.tensor([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 0, 0, 0, 0]])  # 5 and 3
TEXT = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
TOP_K = 2


def routed(*, checkpointing: bool | None = None) -> Any:
    """A mixture of experts; with checkpointing that is reentrant, or not."""
    model: Any = tiny_model("qwen3_moe")
    if checkpointing is not None:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
    return model


def gpt() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=1))


def run(model: Any) -> Tensor:
    hidden: Tensor = model.model.forward(**TEXT).last_hidden_state
    return hidden.sum()


def run_after_no_grad(model: Any) -> Tensor:
    with torch.no_grad():
        run(model)
    return run(model)


def run_in_backward(model: Any) -> Tensor:
    with torch.no_grad():
        loss = run(model)
    loss.requires_grad_()

    def train(_: Tensor) -> None:
        with torch.enable_grad():
            run(model).backward()

    loss.register_hook(train)
    return loss * 1


@pytest.mark.parametrize("checkpointing", [None, True, False])
@pytest.mark.parametrize("step", [run, run_after_no_grad, run_in_backward])
def test_tokens_and_routers_of_the_body_alone(
    step: Callable[[Any], Tensor], checkpointing: bool | None, tmp_path: Path
) -> None:
    export, totals = train_beside(routed(checkpointing=checkpointing), tmp_path, step)
    assert export.metrics["train_perf/tokens"] == totals.tokens == 5 + 3
    assert loads_of(export) == routed_of(totals)
    assert {sum(counts) for counts in totals.routed.values()} == {IDS.numel() * TOP_K}
    assert export.metrics["train_perf/estimated_flops"] > 0


def test_a_model_by_arguments_without_names(tmp_path: Path) -> None:
    export, totals = train_beside(
        gpt(), tmp_path, lambda model: model.transformer.forward(IDS, None, TEXT["attention_mask"])[0].sum()
    )
    assert export.metrics["train_perf/tokens"] == totals.tokens == 5 + 3


def test_targets_that_are_looked_up_beside_the_call_are_no_text(tmp_path: Path) -> None:
    def step(model: Any) -> Tensor:
        target = model.get_input_embeddings()(IDS)
        hidden: Tensor = model.transformer(**TEXT)[0]
        return (hidden - target).pow(2).sum() + model.get_input_embeddings()(IDS).sum()

    export, totals = train_beside(gpt(), tmp_path, step, steps=2)
    assert export.metrics["train_perf/tokens"] == totals.tokens == 2 * (5 + 3)


class Weights(nn.Module):
    """What a loop reads of it is no text, and it is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.words(ids)))


def test_where_nothing_is_seen_nothing_is_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export, _ = train_beside(
        Weights(), tmp_path, lambda model: model.head(nn.functional.embedding(IDS, model.words.weight)).sum()
    )
    assert not {"train_perf/tokens", "train_perf/estimated_flops", "train_perf/total_tokens"} & export.metrics.keys()
    messages = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert sum("pass token_count_fn" in message for message in messages) == 1
