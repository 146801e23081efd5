"""The contract of the project: the same training gives the same numbers under every host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support import hosts
from support.distributed import Ranks
from support.tiny_trainer import EXPERTS, LAYERS, TOP_K, moe_config, moe_model

from areal_callbacks import get_flops_estimator
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Ranks]:
    """Ranks of this file alone: one host destroys the process group at its end."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def routed() -> np.ndarray:
    """Assignments of one pass over the rows: every router's logits, top-k in float64 NumPy."""
    model, counts = moe_model().train(), np.zeros((LAYERS, EXPERTS), dtype=np.int64)
    for index in range(hosts.ROWS):
        row = {name: value[None] for name, value in hosts.rows()[index].items()}
        with torch.no_grad():
            logits = model(**row, output_router_logits=True).router_logits
        for layer, values in enumerate(logits):
            chosen = np.argsort(-values.double().numpy(), axis=-1)[:, :TOP_K]
            counts[layer] += np.bincount(chosen.ravel(), minlength=EXPERTS)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("host", hosts.HOSTS)
def test_the_same_training_gives_the_same_numbers(host, ranks, tmp_path, own_ranks, routed):
    if ranks == 1:
        hosts.train(None, host, str(tmp_path))
    else:
        own_ranks.run(hosts.train, host, str(tmp_path))
        if host == "accelerate":  # end_training destroys the process group
            own_ranks.close()
    records = list(read_metrics(tmp_path / "metrics.jsonl"))
    rows = [record.metrics for record in records if isinstance(record, MetricsRecord)]

    lengths = [int(hosts.rows()[index]["attention_mask"].sum()) for index in range(hosts.ROWS)] * hosts.EPOCHS
    estimate = get_flops_estimator(moe_config())
    steps = hosts.ROWS * hosts.EPOCHS // (hosts.BATCH * hosts.ACCUMULATE * ranks)
    assert sum(row["train_perf/tokens"] for row in rows) == sum(lengths)
    assert sum(row["train_perf/estimated_flops"] for row in rows) == sum(estimate(length) for length in lengths)
    assert sum(row["train_perf/optimizer_steps"] for row in rows) == steps
    assert rows[-1]["train_perf/total_tokens"] == sum(lengths)
    assert rows[-1]["train_perf/total_seconds"] == pytest.approx(sum(row["train_perf/seconds"] for row in rows))
    counted = [np.array(record.counts) for record in records if isinstance(record, ExpertLoadsRecord)]
    assert (sum(counted) == hosts.EPOCHS * routed).all()


def test_the_hosts_are_all_here():
    folder = Path(__file__).parents[2] / "integrations"
    modules = {path.stem for path in folder.glob("[!_]*.py")}
    covered = set(hosts.HOSTS) - {"fabric", "loop"} | {"fsdp"}
    assert modules - covered == {"trl", "megatron", "axolotl", "swift"}, "their own tests cover these"
