"""Utilisation and time over ranks: of all devices together where each is known, of the slowest rank and the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.distributed import Ranks
from torch.distributed import ProcessGroup

from areal_callbacks import MetricsSession, get_flops_estimator
from areal_callbacks.topology import Topology

pytestmark = pytest.mark.slow

SIZE: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
LENGTHS = (5, 7)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


def train(group: ProcessGroup, folder: str, peaks: list[float | None]) -> dict[str, float]:
    """One step of one sequence on each rank; a CPU has no peak of its own."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    rank = group.rank()
    peak = peaks[rank]
    options = {} if peak is None else {"flops": {"peak_flops": peak}}
    with MetricsSession(output_dir=f"{folder}/{rank}", report=False, **options) as session:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **SIZE)).train()
        session.attach(model, topology=Topology(world=group))
        with session.step():
            model(input_ids=torch.arange(LENGTHS[rank])[None]).logits.sum().backward()
        return dict(session.export(1).metrics)


def test_every_rank_knows_its_peak(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(train, str(tmp_path), [3e9, 5e9])
    estimate = get_flops_estimator({"model_type": "llama", "vocab_size": 32, **SIZE, "num_key_value_heads": 2})
    assert estimate is not None
    flops = sum(estimate(length) for length in LENGTHS)
    assert first == second
    assert first["train_perf/estimated_flops"] == flops
    assert first["train_perf/peak_flops_per_second"] == 8e9
    assert first["train_perf/mfu"] == pytest.approx(flops / first["train_perf/seconds"] / 8e9)
    per_device = {"estimated_flops": flops, "tokens": 12}
    for name, amount in per_device.items():
        assert first[f"train_perf/{name}_per_second_per_device"] == pytest.approx(
            amount / first["train_perf/seconds"] / 2
        )


@pytest.mark.parametrize("peaks", [[3e9, None], [None, 5e9], [None, None]])
def test_one_rank_does_not_know_its_peak(two_ranks: Ranks, tmp_path: Path, peaks: list[float | None]) -> None:
    for metrics in two_ranks.run(train, str(tmp_path), peaks):
        assert "train_perf/estimated_flops_per_second_per_device" in metrics
        assert not {"train_perf/mfu", "train_perf/peak_flops_per_second"} & metrics.keys()


def wait_and_train(group: ProcessGroup, folder: str) -> tuple[dict[str, float], float]:
    """Three steps; rank 1 takes longer for each, rank 0 waits longer for its data. Also the seconds since the first."""
    import time

    import torch

    with MetricsSession(output_dir=f"{folder}/{group.rank()}", report=False) as session:
        model = torch.nn.Linear(2, 2)
        session.attach(model, topology=Topology(world=group))
        started = time.perf_counter()
        for _ in range(3):
            with session.step():
                model(torch.ones(1, 2)).sum().backward()
                time.sleep((0.05, 0.1)[group.rank()])
            time.sleep((0.04, 0.01)[group.rank()])
            with session.excluded("evaluation"):
                time.sleep(0.06)
        metrics = session.export(1).metrics
        return dict(metrics), time.perf_counter() - started


def test_the_slowest_rank_and_the_longest_wait(two_ranks: Ranks, tmp_path: Path) -> None:
    (first, wall), (second, _) = two_ranks.run(wait_and_train, str(tmp_path))
    assert first == second
    assert first["train_perf/slowest_rank"] == 1
    assert first["train_perf/seconds"] >= 0.3
    assert 0.15 <= first["train_perf/seconds_min"] < first["train_perf/seconds"]
    assert first["train_perf/seconds_mean"] == pytest.approx(
        (first["train_perf/seconds"] + first["train_perf/seconds_min"]) / 2
    )
    assert 0.08 <= first["train_perf/data_wait_seconds"] <= wall - first["train_perf/seconds_min"] - 3 * 0.06
    assert 0.0 < first["train_perf/goodput"] < 1.0


def train_with_counters(group: ProcessGroup, folder: str, gib: list[dict[str, float]]) -> dict[str, float]:
    """On a CPU whose memory is counted, as that of an accelerator is."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for name, value in gib[group.rank()].items():
            patch.setattr(torch.cpu, f"max_memory_{name}", lambda _, value=value: int(value * 2**30), raising=False)
        return train(group, folder, [None, None])


def test_device_memory_is_that_of_the_fullest_rank(two_ranks: Ranks, tmp_path: Path) -> None:
    gib = [{"allocated": 1.5, "reserved": 2.0}, {"allocated": 1.0, "reserved": 5.0}]
    for metrics in two_ranks.run(train_with_counters, str(tmp_path), gib):
        assert metrics["device_memory/peak_allocated_gib"] == 1.5
        assert metrics["device_memory/peak_reserved_gib"] == 5.0
    for metrics in two_ranks.run(train, str(tmp_path), [None, None]):
        assert not [key for key in metrics if key.startswith("device_memory/")]
