"""A session in plain loops: spans, reduced intervals, what hosts may do in between, and its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import Ranks
from support.sessions import step
from support.tiny_trainer import Recount, moe_model
from torch import nn

from areal_callbacks import MetricsSession, Topology, register_flops_estimator
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, RunRecord, read_metrics


def test_a_plain_loop(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    recount = Recount(model)
    exports = []
    for number, lengths in enumerate([(3, 7), (5, 2), (9, 9)], start=1):
        step(session, model, optimizer, *lengths)
        session.tracker.scalar(note=float(number))
        exports.append(session.export(number, {"loss": 0.5 * number}))
    session.close()
    assert [export.metrics["train_perf/tokens"] for export in exports] == [10, 7, 18]
    assert exports[-1].metrics["train_perf/total_tokens"] == 35
    assert [export.metrics["note"] for export in exports] == [1, 2, 3]
    assert [export.metrics["train_perf/optimizer_steps"] for export in exports] == [1, 1, 1]
    loads = sum(np.array([layer.counts.tolist() for layer in export.expert_loads or ()]) for export in exports)
    np.testing.assert_array_equal(loads, recount.counts)
    records = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [type(record) for record in records] == [RunRecord] + [MetricsRecord, ExpertLoadsRecord] * 3
    for record, export in zip(records[1::2], exports):
        assert isinstance(record, MetricsRecord)
        assert record.metrics == {**export.metrics, "loss": 0.5 * record.step}


def test_reduced_intervals_become_one_export(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Whether the host could log after each of them or not, and with statistics recorded in either."""
    assert session.emit(0) is None
    seconds = []
    for lengths, loss in (((3, 7), 1.0), ((4, 4), 3.0)):
        step(session, model, optimizer, *lengths)
        session.tracker.scalar(loss=loss)
        session.reduce()
        seconds.append(session.state_dict()["totals"]["seconds"])
    session.tracker.scalar(loss=8.0, late=1.0)
    session.reduce(measured=False)
    assert session.has_pending
    export = session.emit(2)
    assert export is not None
    assert export.metrics["train_perf/tokens"] == 18
    assert export.metrics["train_perf/estimated_flops"] == 12 + 56 + 20 + 20
    assert export.metrics["train_perf/seconds"] == pytest.approx(seconds[-1])
    assert export.metrics["train_perf/optimizer_steps"] == 2
    assert (export.metrics["loss"], export.metrics["late"]) == (4.0, 1.0)
    assert not session.has_pending
    session.reduce(measured=False)
    assert not session.has_pending  # nothing was recorded
    session.close()


def test_a_family_that_fails_later_takes_its_pending_part_along(
    session: MetricsSession,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: ThroughputMonitor) -> None:
        raise RuntimeError("planted")

    step(session, model, optimizer, 3)
    session.tracker.scalar(kept=1.0)
    session.reduce()
    monkeypatch.setattr(ThroughputMonitor, "collect", fail)
    step(session, model, optimizer, 4)
    export = session.export(2)
    assert not [name for name in export.metrics if name.startswith("train_perf/")]
    assert export.metrics["kept"] == 1.0
    assert "moe_balance/worst_layer" in export.metrics
    assert "throughput could not be exported" in caplog.text
    session.close()


def test_an_interval_without_training_holds_what_was_recorded_alone(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    step(session, model, optimizer, 3)
    first = session.export(1)
    with session.included():  # a batch that is moved ahead is no training
        session.tracker.scalar(reward=1.0)
    second = session.export(2)
    step(session, model, optimizer, 4)
    third = session.export(3)
    assert {name.partition("/")[0] for name in first.metrics} >= {"train_perf", "moe_balance"}
    assert (second.metrics, second.expert_loads) == ({"reward": 1.0}, None)
    assert third.metrics["train_perf/total_tokens"] == 3 + 4
    assert third.expert_loads is not None
    session.close()


def test_excluded_work_is_not_training_time(session: MetricsSession) -> None:
    import time

    session.begin()
    with session.excluded("rollout"):
        time.sleep(0.2)
    with session.excluded():
        time.sleep(0.2)
    session.end()
    with session.excluded("rollout"):  # outside of a step it starts none
        time.sleep(0.01)
    metrics = session.export(1).metrics
    assert metrics["train_perf/seconds"] < 0.2
    assert 0.1 <= metrics["timeperf/rollout"] < 0.2  # the mean of both
    session.close()


def test_an_exception_in_excluded_work_passes_and_training_goes_on(session: MetricsSession) -> None:
    session.begin()
    with pytest.raises(RuntimeError, match="rollout"), session.excluded():
        raise RuntimeError("rollout")
    time.sleep(0.02)
    session.end()
    assert session.export(1).metrics["train_perf/seconds"] >= 0.02
    session.close()


def test_closing_undoes_every_hook(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    assert optimizer._optimizer_step_pre_hooks
    step(session, model, optimizer, 3)
    with pytest.raises(RuntimeError, match="in the loop"), session:
        raise RuntimeError("in the loop")
    session.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    step(session, model, optimizer, 5)
    assert session.export(2).metrics["train_perf/tokens"] == 3  # of before
    assert not (tmp_path / "metrics.jsonl").exists()  # and nothing is written any more


def test_totals_are_json(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    step(session, model, optimizer, 3, 4)
    session.export(1)
    state = json.loads(json.dumps(session.state_dict()))
    session.close()
    resumed = MetricsSession(output_dir=tmp_path, report=False).attach(model, optimizer)
    resumed.load_state_dict(state)
    step(resumed, model, optimizer, 5)
    assert resumed.export(2).metrics["train_perf/total_tokens"] == 12
    resumed.close()


def uneven_ranks(_group: Any, folder: str) -> list[dict[str, float]]:
    """One rank trains and records more than the other, which in the end does nothing at all."""
    import torch.distributed as dist

    register_flops_estimator("qwen3_moe", lambda config: lambda length: length * (length + 1))
    rank, model = dist.get_rank(), moe_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MetricsSession(output_dir=folder, report=False) as session:
        session.attach(model, optimizer, Topology.data_parallel())
        exports = []
        for number in range(3):
            for _ in range(rank + 1 if number < 2 else 2 * rank):
                step(session, model, optimizer, 3, 4)
            if rank == number:
                session.tracker.scalar(**{f"only_{number}": float(number)})
            exports.append(session.export(number).metrics)
    return exports


@pytest.mark.slow
def test_ranks_that_do_different_things(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(uneven_ranks, str(tmp_path))
    assert first == second
    assert [metrics["train_perf/tokens"] for metrics in first] == [21, 21, 14]
    assert [metrics["train_perf/optimizer_steps"] for metrics in first] == [2, 2, 2]
    assert [metrics.get("only_0") for metrics in first] == [0.0, None, None]
    assert [metrics.get("only_1") for metrics in first] == [None, 1.0, None]
    assert first[-1]["train_perf/total_tokens"] == 56
