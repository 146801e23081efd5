"""A session in plain loops: spans, schedule, two runs at once, what hosts may do in between, and its end."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import Ranks
from support.tiny_trainer import Recount, moe_model
from torch import nn

from areal_callbacks import MetricsSession, Topology, register_flops_estimator, stats_tracker
from areal_callbacks.flops import registry
from areal_callbacks.safety.reporting import logger
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, RunRecord, read_metrics


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_flops_estimator("qwen3_moe", lambda config: lambda length: length * (length + 1))


def batch(*lengths: int) -> dict[str, torch.Tensor]:
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, 64, (len(lengths), width), generator=torch.Generator().manual_seed(sum(lengths)))
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids}


def step(session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, *lengths: int) -> None:
    session.begin()
    model(**batch(*lengths)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    session.end()


@pytest.fixture
def model() -> nn.Module:
    return moe_model()


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def session(model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path) -> MetricsSession:
    return MetricsSession(output_dir=tmp_path, report=False).attach(model, optimizer)


def test_a_model_of_another_size_costs_the_flops(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Lengths of all models are pooled; a second model of the same size has the same formula."""
    session.attach(moe_model(seed=1))
    step(session, model, optimizer, 3)
    assert session.export(1).metrics["train_perf/estimated_flops"] == 12
    session.attach(other := moe_model(num_hidden_layers=1))
    step(session, model, optimizer, 3)
    other(**batch(4))
    metrics = session.export(2).metrics
    assert metrics["train_perf/tokens"] == 7
    assert "train_perf/estimated_flops" not in metrics
    assert "different sizes" in caplog.text
    session.close()


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
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, caplog: pytest.LogCaptureFixture
) -> None:
    step(session, model, optimizer, 3)
    session.tracker.scalar(kept=1.0)
    session.reduce()
    session.count_sequences("none")
    step(session, model, optimizer, 4)
    export = session.export(2)
    assert not [name for name in export.metrics if name.startswith("train_perf/")]
    assert export.metrics["kept"] == 1.0
    assert "moe_balance/worst_layer" in export.metrics
    assert "switched off" in caplog.text
    session.close()


def test_excluded_work_is_not_training_time(session: MetricsSession) -> None:
    import time

    session.begin()
    with session.excluded("rollout"):
        time.sleep(0.05)
    with session.excluded():
        time.sleep(0.05)
    session.end()
    with session.excluded("rollout"):  # outside of a step it starts none
        time.sleep(0.01)
    metrics = session.export(1).metrics
    assert metrics["train_perf/seconds"] < 0.05
    assert 0.02 <= metrics["timeperf/rollout"] < 0.1  # the mean of both
    session.close()


def test_an_exception_in_excluded_work_passes_and_training_goes_on(session: MetricsSession) -> None:
    session.begin()
    with pytest.raises(RuntimeError, match="rollout"), session.excluded():
        raise RuntimeError("rollout")
    time.sleep(0.02)
    session.end()
    assert session.export(1).metrics["train_perf/seconds"] >= 0.02
    session.close()


def test_the_global_trackers_belong_to_the_first_open_session(tmp_path: Path) -> None:
    first, second = (MetricsSession(output_dir=tmp_path / name, report=False) for name in "ab")
    stats_tracker.scalar(value=1.0)
    assert "value" not in second.export(1).metrics
    assert first.export(1).metrics["value"] == 1.0
    first.close()
    stats_tracker.get("rollout").scalar(reward=2.0)
    assert second.export(2).metrics["rollout/reward"] == 2.0
    second.close()


def test_a_session_that_was_dropped_holds_nobody_up(tmp_path: Path) -> None:
    MetricsSession(output_dir=tmp_path, report=False)
    gc.collect()
    session = MetricsSession(output_dir=tmp_path, report=False)
    stats_tracker.scalar(value=1.0)
    assert session.export(1).metrics["value"] == 1.0
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


def test_a_model_that_cannot_be_observed_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Closed(nn.Linear):
        def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no hooks here")

    session = MetricsSession(output_dir=tmp_path, report=False).attach(Closed(2, 2))
    session.tracker.scalar(kept=1.0)
    assert session.export(1).metrics == {"kept": 1.0}
    assert len([r for r in caplog.records if r.name == logger.name and "no hooks here" in r.getMessage()]) == 1
    session.close()


def test_data_parallel_peaks_add_up(tmp_path: Path) -> None:
    """DataParallel names its devices; without an accelerator it has none and works on one."""
    for devices, expected in (([], 1e12), ([0, 1], 2e12)):
        root = nn.DataParallel(nn.Linear(2, 2))
        root.device_ids = devices
        session = MetricsSession(output_dir=tmp_path, report=False, flops={"peak_flops": 1e12}).attach(root)
        assert session.export(1).metrics["train_perf/peak_flops_per_second"] == expected
        session.close()


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


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda pattern: "20250101-120000")
    first, second = MetricsSession(report=False), MetricsSession(report=False)
    with first, second:
        for session, value in ((first, 1.0), (second, 2.0)):
            session.tracker.scalar(loss=value)
            session.export(1)
    with MetricsSession(report=False) as third:
        third.tracker.scalar(loss=3.0)
        third.export(1)
    for name, value in (("20250101-120000", 1.0), ("20250101-120000-2", 2.0), ("20250101-120000-3", 3.0)):
        records = read_metrics(Path("areal_metrics", name, "metrics.jsonl"))
        assert [r.metrics["loss"] for r in records if isinstance(r, MetricsRecord)] == [value]
