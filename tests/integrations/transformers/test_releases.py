"""What holds in every supported release of transformers; ``make test-transformers`` runs it under older ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.readback import messages
from support.tiny_trainer import (
    RecordingTrainer,
    Recount,
    Sequences,
    dense_model,
    make_trainer,
    mask_lengths,
    metric_records,
    moe_model,
    our_rows,
    router_modules,
    total_loads,
)
from torch import nn
from transformers import Trainer
from transformers import __version__ as version

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

HAS_METHODS = hasattr(Trainer, "_run_epoch") and hasattr(Trainer, "_finalize_training")


class ExpertRows:
    """Rows that the experts of a list are given in training, as the blocks of Transformers 4 have them."""

    def __init__(self, model: nn.Module) -> None:
        blocks = [module for module in model.modules() if isinstance(getattr(module, "experts", None), nn.ModuleList)]
        self.counts = np.zeros((len(blocks), len(blocks[0].experts)), dtype=np.int64)
        for layer, block in enumerate(blocks):
            for number, expert in enumerate(block.experts):
                expert.register_forward_pre_hook(partial(self._add, (layer, number)))

    def _add(self, place: tuple[int, int], expert: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if expert.training and torch.is_grad_enabled():
            self.counts[place] += len(arguments[0])


def recount_of(model: nn.Module) -> Recount | ExpertRows:
    return Recount(model) if router_modules(model) else ExpertRows(model)


@pytest.mark.parametrize("every", [1, 3])
def test_every_token_and_assignment_is_in_a_row_and_a_file(every: int, tmp_path: Path) -> None:
    """With ``every=3`` the last of four steps joins the row of the Trainer's end."""
    model = moe_model()
    recount = recount_of(model)
    trainer = make_trainer(tmp_path, model=model, callbacks=[AReaLMetricsCallback(every=every)], interleave=True)
    trainer.train()
    tokens = sum(mask_lengths(trainer.batches))
    rows = [row for row in trainer.state.log_history if "train_perf/tokens" in row]
    assert sum(row["train_perf/tokens"] for row in rows) == tokens
    assert "train_runtime" in rows[-1] or every == 1
    assert sum(record.metrics["train_perf/tokens"] for record in metric_records(tmp_path)) == tokens
    np.testing.assert_array_equal(total_loads(tmp_path), recount.counts)
    assert recount.counts.sum() > 0


def test_one_message_where_the_trainer_lacks_methods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        make_trainer(tmp_path, callbacks=[AReaLMetricsCallback()]).train()
    expected = [] if HAS_METHODS else [f"transformers {version} has no Trainer._run_epoch"]
    assert [message.partition(",")[0] for message in messages(caplog)] == expected


def test_totals_are_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    def make(max_steps: int) -> RecordingTrainer:
        saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": max_steps}
        return make_trainer(
            tmp_path, model=dense_model(), callbacks=[AReaLMetricsCallback(resume_totals=True)], **saved
        )

    first, second = make(2), make(4)
    first.train()
    second.train(resume_from_checkpoint=True)
    assert len(second.batches) == 4
    tokens = sum(mask_lengths([*first.batches, *second.batches]))
    assert our_rows(second)[-1]["train_perf/total_tokens"] == tokens


class BreaksOnce(Sequences):
    """A row of the second step cannot be read the first time: outside of every step."""

    broken = False

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 7 and not self.broken:
            self.broken = True
            raise OSError("no such row")
        return super().__getitem__(index)


def test_a_training_after_one_that_could_not_read_its_data(tmp_path: Path) -> None:
    callback = AReaLMetricsCallback()
    trainer = make_trainer(tmp_path, data=BreaksOnce(), callbacks=[callback])
    with pytest.raises(OSError, match="no such row"):
        trainer.train()
    before = len(trainer.batches)
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches[before:]))
    assert callback.session is None
