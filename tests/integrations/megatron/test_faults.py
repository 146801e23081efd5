"""Everything of ours that runs in Megatron-LM's pretraining is made to raise: its weights stay those without us."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.distributed import Ranks
from support.megatron_runs import JOBS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", ["training", "with_callbacks"])
def test_whatever_raises_costs_messages_and_no_weight(ranks: Ranks, tmp_path: Path, variant: str) -> None:
    line = ["--pipeline-model-parallel-size", "2", "--train-iters", "3", "--log-interval", "1"]
    for results in ranks.run_from(JOBS, "plant_everywhere", variant, line, str(tmp_path)):
        assert len(results) > 5
        assert [places for places, _, same in results if not same] == []
        assert [places for places, messages, _ in results if places and not messages] == []
