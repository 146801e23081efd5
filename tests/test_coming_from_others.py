"""The metrics that people come from, side by side with ours in the same run: docs/coming_from_others.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from lightning.pytorch.callbacks import ThroughputMonitor
from support.recount import written_loads, written_sum
from support.short_training import COMMON
from support.tiny_lightning import ROWS, Module, csv_rows, loader, tokens, trainer
from support.tiny_trainer import (
    EXPERTS,
    WIDTH,
    Sequences,
    fresh_accelerator,
    make_trainer,
    mask_lengths,
    moe_model,
    our_rows,
    router_modules,
)
from trl import SFTConfig, SFTTrainer

from areal_callbacks.examples.grpo_mismatch import make_policy, make_tokenizer
from areal_callbacks.integrations.lightning import AReaLMetricsCallback as LightningCallback
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about themselves

TOTAL = "train_perf/total_tokens"
PADDING = SimpleNamespace(pad_token_id=0)  # what the Trainer asks its tokenizer for


@pytest.mark.parametrize(("kind", "counts_padding"), [("all", True), ("non_padding", False)])
def test_the_tokens_of_the_hugging_face_trainer(kind: str, counts_padding: bool, tmp_path: Path) -> None:
    both = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(report=False)], include_num_input_tokens_seen=kind)
    both.processing_class = PADDING
    both.train()
    padded = sum(batch["input_ids"].numel() for batch in both.batches)
    real = sum(mask_lengths(both.batches))
    assert padded == len(Sequences()) * WIDTH > real
    row = our_rows(both)[-1]
    assert row[TOTAL] == real
    assert both.state.num_input_tokens_seen == (padded if counts_padding else real)


def test_the_tokens_of_trl(tmp_path: Path) -> None:
    fresh_accelerator()
    rows = Dataset.from_list([{"text": "1+2=3" + "+4" * (index % 3)} for index in range(16)])
    with torch._dynamo.config.patch(disable=True):
        both = SFTTrainer(
            model=make_policy(),
            args=SFTConfig(output_dir=str(tmp_path), **COMMON),
            train_dataset=rows,
            processing_class=make_tokenizer(),
            callbacks=[AReaLMetricsCallback(report=False)],
        )
        both.train()
    theirs = [row["num_tokens"] for row in both.state.log_history if "num_tokens" in row]
    assert our_rows(both)[-1][TOTAL] == theirs[-1] == written_sum(tmp_path)


@pytest.mark.parametrize("counts_padding", [True, False])
def test_the_items_of_lightnings_monitor(counts_padding: bool, tmp_path: Path) -> None:
    """It counts what the function of its user counts."""

    def length(batch: Any) -> int:
        return batch["input_ids"].numel() if counts_padding else int(batch["attention_mask"].sum())

    monitor = ThroughputMonitor(lambda batch: len(batch["input_ids"]), length, window_size=2)
    trainer(tmp_path, LightningCallback(report=False), monitor, max_epochs=1).fit(Module(), loader())
    theirs = [row["train/lengths"] for row in csv_rows(tmp_path) if "train/lengths" in row]
    assert theirs[-1] == (ROWS * WIDTH if counts_padding else tokens())
    assert written_sum(tmp_path) == tokens()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_router_hook_of_ones_own(checkpointing: bool, tmp_path: Path) -> None:
    """``torch.bincount`` in a forward hook counts recomputations too."""
    model = moe_model()
    counts: Counter[tuple[int, int]] = Counter()
    for layer, router in enumerate(router_modules(model)):
        router.register_forward_hook(_count_into(counts, layer))
    make_trainer(
        tmp_path,
        model=model,
        callbacks=[AReaLMetricsCallback(report=False)],
        activation_checkpointing=checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
    ).train()
    times = 2 if checkpointing else 1
    ours = {
        (layer, expert): times * number
        for (_, layer), numbers in written_loads(tmp_path).items()
        for expert, number in enumerate(numbers)
        if number
    }
    assert ours == counts


def _count_into(counts: Counter[tuple[int, int]], layer: int) -> Any:
    def hook(_module: Any, _arguments: Any, output: Any) -> None:
        numbers = torch.bincount(output[2].flatten(), minlength=EXPERTS).tolist()
        counts.update({(layer, expert): number for expert, number in enumerate(numbers) if number})

    return hook
