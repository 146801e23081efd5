"""Tokens, ΣL(L+1) and routed assignments against recounts of the same batches, to the integer, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.tiny_trainer import (
    LAYERS,
    TOP_K,
    WIDTH,
    RecordingTrainer,
    Recount,
    Sequences,
    fresh_accelerator,
    make_trainer,
    mask_lengths,
    moe_model,
    our_rows,
    replayed_routes,
    squares,
    total_loads,
)
from torch import nn
from transformers import DataCollatorWithFlattening

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

CHECKPOINTING = {
    "none": {},
    "reentrant": {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}},
    "non-reentrant": {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}},
}


def assert_exact(trainer: RecordingTrainer, folder: Path, lengths: list[int], routes: np.ndarray) -> None:
    rows = our_rows(trainer)
    assert sum(row["train_perf/tokens"] for row in rows) == sum(lengths)
    assert rows[-1]["train_perf/total_tokens"] == sum(lengths)
    assert sum(row["train_perf/estimated_flops"] for row in rows) == squares(lengths)
    np.testing.assert_array_equal(total_loads(folder), routes)
    assert routes.sum() > 0


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_only_training_forwards_count(checkpointing: str, tmp_path: Path) -> None:
    """Evaluation, ``no_grad`` and inference forwards are interleaved; the last accumulation window is incomplete."""
    model = moe_model()
    recount = Recount(model)
    trainer = make_trainer(
        tmp_path,
        model=model,
        callbacks=[AReaLMetricsCallback()],
        interleave=True,
        gradient_accumulation_steps=3,
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=1,
        **CHECKPOINTING[checkpointing],
    )
    trainer.train()
    assert len(trainer.batches) == 2 * 8  # 3 + 3 + 2 micro-batches an epoch
    assert_exact(trainer, tmp_path, mask_lengths(trainer.batches), recount.counts)
    routed = sum(batch["input_ids"].numel() for batch in trainer.batches) * TOP_K  # padding is routed too
    np.testing.assert_array_equal(recount.counts.sum(1), [routed] * LAYERS)


def test_every_step_has_its_own_numbers(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback()], gradient_accumulation_steps=3)
    trainer.train()
    for row in our_rows(trainer):
        batches = [b for b, step in zip(trainer.batches, trainer.steps_of_batches) if step == row["step"]]
        assert row["train_perf/tokens"] == sum(mask_lengths(batches))
        assert row["train_perf/estimated_flops"] == squares(mask_lengths(batches))
        assert row["train_perf/optimizer_steps"] == 1
        assert row["train_perf/tokens_per_second"] == row["train_perf/tokens"] / row["train_perf/seconds"]
        assert 0 < row["timeperf/optimizer_step"] < row["train_perf/seconds"]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT still asks for it
def test_lora(tmp_path: Path) -> None:
    model = get_peft_model(moe_model(), LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    recount = Recount(model)
    trainer = make_trainer(tmp_path, model=model, callbacks=[AReaLMetricsCallback()], interleave=True)
    trainer.train()
    assert_exact(trainer, tmp_path, mask_lengths(trainer.batches), recount.counts)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["none", "non-reentrant"])
def test_torch_compile(checkpointing: str, tmp_path: Path) -> None:
    """Plain hooks would be traced: with a learning rate of 0 the recount runs the batches again, uncompiled."""
    torch._dynamo.reset()
    model = moe_model()
    trainer = make_trainer(
        tmp_path,
        model=model,
        callbacks=[AReaLMetricsCallback()],
        interleave=checkpointing == "none",
        learning_rate=0.0,
        torch_compile=True,
        torch_compile_backend="aot_eager",
        **CHECKPOINTING[checkpointing],
    )
    trainer.train()
    assert type(trainer.model_wrapped).__name__ == "OptimizedModule"
    torch._dynamo.reset()
    fresh_accelerator()
    assert_exact(trainer, tmp_path, mask_lengths(trainer.batches), replayed_routes(model, trainer.batches))


def packed_lengths(positions: list[int]) -> list[int]:
    starts = [index for index, position in enumerate(positions) if position == 0]
    return [end - start for start, end in zip(starts, [*starts[1:], len(positions)])]


class Unpadded(Sequences):
    """The same sequences without their padding, for collators that join them."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        return {"input_ids": row["input_ids"][row["attention_mask"] == 1].tolist()}


@pytest.mark.parametrize("boundaries", [True, False])
def test_padding_free_batches(boundaries: bool, tmp_path: Path) -> None:
    """One row of joined sequences, told apart by ``cu_seq_lens_q`` or by positions alone."""
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=boundaries)
    model = moe_model()
    recount = Recount(model)
    trainer = make_trainer(
        tmp_path, model=model, data=Unpadded(), callbacks=[AReaLMetricsCallback()], collator=collator
    )
    trainer.train()
    assert all("attention_mask" not in batch and len(batch["input_ids"]) == 1 for batch in trainer.batches)
    assert all(("cu_seq_lens_q" in batch) == boundaries for batch in trainer.batches)
    lengths = [length for batch in trainer.batches for length in packed_lengths(batch["position_ids"][0].tolist())]
    assert sorted(lengths) == sorted(len(Unpadded()[index]["input_ids"]) for index in range(16))
    assert_exact(trainer, tmp_path, lengths, recount.counts)


class Embedded(RecordingTrainer):
    """Hands the model embeddings in place of ids."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        inputs = dict(inputs)
        inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
        return super().compute_loss(model, inputs, *args, **kwargs)


@pytest.mark.parametrize("masked", [True, False])
def test_inputs_embeds(masked: bool, tmp_path: Path) -> None:
    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        names = rows[0].keys() if masked else ("input_ids", "labels")
        return {name: torch.stack([row[name] for row in rows]) for name in names}

    model = moe_model()
    recount = Recount(model)
    trainer = make_trainer(tmp_path, model=model, kind=Embedded, callbacks=[AReaLMetricsCallback()], collator=collate)
    trainer.train()
    lengths = mask_lengths(trainer.batches) if masked else [WIDTH] * 16
    assert_exact(trainer, tmp_path, lengths, recount.counts)


def test_token_count_fn_replaces_the_mask(tmp_path: Path) -> None:
    def labelled(**inputs: torch.Tensor) -> list[int]:
        return (inputs["labels"] != -100).sum(-1).tolist()

    class HalfLabelled(Sequences):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            row = super().__getitem__(index)
            row["labels"][: WIDTH // 2] = -100
            return row

    trainer = make_trainer(
        tmp_path, data=HalfLabelled(), callbacks=[AReaLMetricsCallback(token_count_fn=labelled)], interleave=True
    )
    trainer.train()
    expected = [sum(label != -100 for label in row) for batch in trainer.batches for row in batch["labels"].tolist()]
    assert sum(expected) != sum(mask_lengths(trainer.batches))
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(expected)
    assert sum(row["train_perf/estimated_flops"] for row in our_rows(trainer)) == squares(expected)


def test_a_callback_added_late_and_a_second_training(tmp_path: Path) -> None:
    """Totals restart with every training, in the order of the trainings in one metrics.jsonl."""
    trainer = make_trainer(tmp_path)
    trainer.add_callback(AReaLMetricsCallback())
    recount = Recount(trainer.model)
    trainer.train()
    first = mask_lengths(trainer.batches)
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(first)
    trainer.train()
    second = mask_lengths(trainer.batches)[len(first) :]
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(second)
    assert sum(row["train_perf/tokens"] for row in our_rows(trainer)) == sum(second)
    np.testing.assert_array_equal(total_loads(tmp_path), recount.counts)
