"""Lightning against the recount."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recount import Recount, routed_of, written_loads, written_sum
from support.tiny_lightning import Module, loader, tokens, trainer
from support.tiny_trainer import Sequences
from torch import Tensor

from areal_callbacks.integrations.lightning import AReaLMetricsCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning", "ignore:.*Skipping val loop"),
]


class Skipping(Module):
    """Trains on no batch whose number is odd."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:  # type: ignore[override]
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


def test_skipped_batches_do_not_count(tmp_path: Path) -> None:
    module = Skipping()
    with Recount(module) as recount:
        trainer(tmp_path, AReaLMetricsCallback(report=False), max_epochs=1).fit(module, loader(8))
    trained = sum(int(Sequences(8)[index]["attention_mask"].sum()) for index in (0, 1, 4, 5))
    assert recount.totals.tokens == trained
    assert written_sum(tmp_path) == trained
    assert written_loads(tmp_path) == routed_of(recount.totals)


def test_validation_does_not_count(tmp_path: Path) -> None:
    module = Module()
    with Recount(module) as recount:
        trainer(tmp_path, AReaLMetricsCallback(report=False), max_epochs=1).fit(module, loader(8), loader(4))
    assert recount.totals.tokens == written_sum(tmp_path) == tokens(8)
    assert written_loads(tmp_path) == routed_of(recount.totals)
