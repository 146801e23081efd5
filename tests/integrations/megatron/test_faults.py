"""Everything of ours that runs in Megatron-LM's pretraining is made to raise: its weights stay those without us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.distributed import Ranks
from support.fault_table import Fault, faults
from support.megatron_runs import JOBS, TOKENS, Run

pytestmark = pytest.mark.slow

PLANTS = JOBS.with_name("megatron_plants.py")


BROKEN = {
    "training": "everything of ours raises, in a `pretrain` whose functions are replaced",
    "with_callbacks": "everything of ours raises, in a `pretrain` that takes callbacks",
}
SAME = "the training ends with the same weights"


@pytest.mark.timeout(900)  # many trainings, which a loaded machine runs slowly
@faults({variant: Fault("Megatron", broken, SAME) for variant, broken in BROKEN.items()})
def test_whatever_raises_costs_messages_and_no_weight(ranks: Ranks, tmp_path: Path, case: str) -> None:
    line = ["--pipeline-model-parallel-size", "2", "--train-iters", "3", "--log-interval", "1"]
    for results in ranks.run_from(PLANTS, "plant_everywhere", case, line, str(tmp_path), timeout=800):
        assert len(results) > 5
        assert [places for places, _, same in results if not same] == []
        assert [places for places, messages, _ in results if places and not messages] == []


@pytest.mark.timeout(120)
@faults(
    {
        "directory": Fault("Megatron", "a folder stands where metrics.jsonl should be", "both ranks end"),
        "pipe": Fault("Megatron", "metrics.jsonl is a pipe that nobody reads", "both ranks end"),
    }
)
def test_without_a_file_pretraining_ends_and_its_board_has_the_numbers(ranks: Ranks, tmp_path: Path, case: str) -> None:
    {"directory": os.mkdir, "pipe": os.mkfifo}[case](tmp_path / "metrics.jsonl")
    run = Run(ranks, tmp_path, "--train-iters", "2", "--log-interval", "1")
    assert [result["error"] for result in run.ranks] == [None, None]
    assert run.series("train_perf/tokens") == {1: TOKENS, 2: TOKENS}
