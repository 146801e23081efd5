"""What is wrapped of Megatron-LM: which time is training time, and that everything is put back."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.distributed import Ranks
from support.megatron_runs import TOKENS, Run
from support.tiny_megatron import MICRO_BATCHES

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.mark.parametrize("variant", ["training", "with_callbacks"])
def test_waiting_for_data_and_evaluation_are_not_training(ranks: Ranks, tmp_path: Path, variant: str) -> None:
    run = Run(ranks, tmp_path, "--train-iters", "4", "--batch-seconds", "0.1", variant=variant)
    seconds = sum(metrics["train_perf/seconds_mean"] * 2 for metrics in run.metrics.values())
    records = [rank["record"] for rank in run.ranks]
    # both stages fetch every batch here, the second one while it waits for the first
    assert all(record["waited"] == pytest.approx(4 * MICRO_BATCHES * 0.1) for record in records)
    steps, waited = (sum(record[name] for record in records) for name in ("step_seconds", "waited"))
    assert seconds == pytest.approx(steps - waited, rel=0.1)
    assert variant == "with_callbacks" or all(record["evaluated"] == 2 for record in records)
    assert sum(metrics["train_perf/tokens"] for metrics in run.metrics.values()) == 4 * TOKENS


@pytest.mark.parametrize("variant", ["training", "with_callbacks"])
def test_an_exception_passes_and_undoes_everything(ranks: Ranks, tmp_path: Path, variant: str) -> None:
    run = Run(ranks, tmp_path, "--train-iters", "6", "--raise-at", "4", variant=variant)
    assert [rank["error"] for rank in run.ranks] == ["FloatingPointError('iteration 4')"] * 2
    assert [rank["restored_by_itself"] for rank in run.ranks] == [True, True]
    assert [rank["restored"] for rank in run.ranks] == [True, True]
    assert {step: metrics["train_perf/tokens"] for step, metrics in run.metrics.items()} == {2: 2 * TOKENS}
    again = Run(ranks, tmp_path / "again", "--train-iters", "2", variant=variant)
    assert again.series("train_perf/total_tokens") == {2: 2 * TOKENS}
