"""Trackio on this machine: what is in its database and its media files afterwards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.readback import (
    equal,
    jsonl_rows,
    messages,
    trackio_config,
    trackio_image,
    trackio_logs,
    trackio_rows,
)

from areal_callbacks.config import TrackioConfig
from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.trackio import TrackioGuest, TrackioWriter, current_trackio_run

KEY = "moe_balance/expert_loads"


def loads(*counts: int) -> ExpertLoads:
    return ExpertLoads((LayerLoads("", 4, torch.tensor(counts, dtype=torch.int64)),))


def written(folder: Path, project: str, *exports: Export, **options: Any) -> None:
    """Write the exports as the publisher does, beside metrics.jsonl."""
    writer = TrackioWriter(TrackioConfig(project=project, name="run"), **options)
    publisher = Publisher([], run=Run(folder), synchronous=[JsonlWriter()], trackers=[writer])
    for export in exports:
        publisher.publish(export)
    publisher.close()


def test_every_row_equals_metrics_jsonl_with_nan_and_infinities(offline_trackers: Path) -> None:
    special = {"nan": math.nan, "up": math.inf, "down": -math.inf, "tiny": 5e-324, "big": 2.0**53 + 2}
    exports = [Export(step, {"train_perf/tokens": 0.1 * step, **special}, host={"loss": step / 7}) for step in range(5)]
    written(offline_trackers, "rows", *exports)
    rows, expected = trackio_rows("rows", "run"), jsonl_rows(offline_trackers)
    assert rows.keys() == expected.keys() == set(range(5))
    assert all(equal(rows[step], expected[step]) for step in rows)


def test_repeated_and_earlier_steps_numpy_and_tensors_lose_nothing(offline_trackers: Path) -> None:
    steps = [np.int64(5), np.int64(5), 3, 9]
    values: list[Any] = [np.float32(0.5), torch.tensor(1.5), np.int64(7), torch.tensor([2.5])]
    written(offline_trackers, "steps", *(Export(step, {"a": value}) for step, value in zip(steps, values)))
    assert sorted((row["step"], row["a"]) for row in trackio_logs("steps", "run")) == [
        (3, 7),
        (5, 0.5),
        (5, 1.5),
        (9, 2.5),
    ]


def test_loads_arrive_as_a_picture_a_table_and_series(offline_trackers: Path) -> None:
    written(offline_trackers, "loads", Export(1, {}, loads(1, 3)), Export(2, {}, loads(7, 5)), table_every=2)
    first, second = trackio_logs("loads", "run")
    assert (first["moe_balance/layer_4/expert_1/tokens"], first["moe_balance/layer_4/expert_1/load_percent"]) == (
        3,
        75.0,
    )
    assert KEY not in first
    # Both intervals together are balanced: every pixel is white.
    np.testing.assert_array_equal(trackio_image(second), np.full((384, 768, 3), 247))
    assert second["moe_balance/hottest_experts"]["_value"] == [
        {"layer": 4, "expert": expert, "tokens": 8, "load_percent": 50.0, "load_over_ideal": 1.0} for expert in (0, 1)
    ]


def test_many_experts_have_no_series(offline_trackers: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(offline_trackers, "many", Export(1, {"a": 1.0}, loads(*range(513))))
    assert trackio_rows("many", "run") == {1: {"a": 1.0}}
    (row,) = trackio_logs("many", "run")
    assert len(row["moe_balance/hottest_experts"]["_value"]) == 20
    assert [cell["expert"] for cell in row["moe_balance/hottest_experts"]["_value"][:3]] == [512, 511, 510]
    assert [message[:12] for message in messages(caplog)] == ["1,026 series"]


def test_secrets_stay_here_and_the_report_is_handed_over(offline_trackers: Path) -> None:
    writer = TrackioWriter(project="secrets", name="run")
    writer.open(Run(offline_trackers, {"lr": 0.125, "hf_token": "s3cret", "max_tokens": 8}))
    writer.write(Export(1, {"a": 1.0}))
    offline_trackers.mkdir()
    (offline_trackers / "report.html").write_text("<!doctype html><p>planted</p>")
    writer.close()
    config = trackio_config("secrets", "run")
    assert (config["lr"], config["max_tokens"], config["hf_token"]) == (0.125, 8, "[redacted]")
    assert "report" in trackio_logs("secrets", "run")[-1]


def test_a_space_that_cannot_be_reached_leaves_the_run_here(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", str(offline_trackers / "none"))
    writer = TrackioWriter(TrackioConfig(project="space", name="run", space_id="nobody/nothing"))
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert trackio_rows("space", "run") == {1: {"a": 1.0}}
    (message,) = messages(caplog)
    assert message.startswith("Trackio stays on this machine")


def test_a_guest_joins_the_rows_of_the_host(offline_trackers: Path) -> None:
    import trackio

    host = trackio.init("guest", name="run", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    guest = TrackioGuest(current_trackio_run)
    assert isinstance(guest, MetricWriter)
    guest.open(Run(offline_trackers))
    for step in range(10, 110, 10):
        guest.write(Export(step, {"ours": 1.0}, loads(step, 0)))
        trackio.log({"loss": step / 2, "train/global_step": step})
    guest.close()
    trackio.log({"loss": 0.0})
    assert "log" not in vars(host)
    trackio.finish()
    *rows, last = trackio_logs("guest", "run")
    assert [(row["step"], row["train/global_step"], row["loss"]) for row in rows] == [
        (index, 10 * (index + 1), 5.0 * (index + 1)) for index in range(10)
    ]
    assert [row["moe_balance/layer_4/expert_0/tokens"] for row in rows] == list(range(10, 110, 10))
    assert all(trackio_image(row).shape == (384, 768, 3) for row in rows)
    assert KEY not in last
    assert not any("ours" in row for row in rows)


def test_a_guest_without_a_host_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the host has no Trackio run"):
        TrackioGuest(lambda: None).open(Run(tmp_path))
