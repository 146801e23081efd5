"""Trackio on this machine: what is in its database and its media files afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.readback import messages, trackio_config, trackio_image, trackio_logs, trackio_rows
from support.report_runs import loads as make_loads
from support.tracker_conformance import RunConformance, publish
from support.wraps import find_wraps

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import TrackioConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackio import TrackioGuest, TrackioWriter

KEY = "moe_balance/expert_loads"


def loads(*counts: int) -> ExpertLoads:
    return make_loads({("", 4): counts})


def written(folder: Path, project: str, *exports: Export, **balance: Any) -> None:
    config = TrackioConfig(project=project, name="run")
    publish(folder, TrackioWriter(config, MoEBalanceConfig(**balance)), *exports)


class TestConformance(RunConformance):
    name, kind = "trackio", "Trackio run"

    def section(self, folder: Path) -> TrackioConfig:
        return TrackioConfig(project=_name_project(folder), name="run")

    def rows(self, folder: Path) -> dict[int, dict[str, float]]:
        return trackio_rows(_name_project(folder), "run")

    def search(self, folder: Path) -> str:
        from trackio.utils import MEDIA_DIR

        project = _name_project(folder)
        files = [path for path in Path(MEDIA_DIR, project).rglob("*") if path.is_file()]
        kept = [str(trackio_config(project, "run")), str(trackio_logs(project, "run"))]
        return "\n".join([*kept, *(path.read_text(errors="replace") for path in files)])


def _name_project(folder: Path) -> str:
    """All tests share a database."""
    return folder.parent.name


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
    written(offline_trackers, "loads", Export(1, {}, loads(1, 3)), Export(2, {}, loads(7, 5)), expert_table_every=2)
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


def test_a_space_that_cannot_be_reached_leaves_the_run_here(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", str(offline_trackers / "none"))
    writer = TrackioWriter(TrackioConfig(project="space", name="run", space_id="nobody/nothing"), MoEBalanceConfig())
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert trackio_rows("space", "run") == {1: {"a": 1.0}}
    (message,) = messages(caplog)
    assert message.startswith("Trackio stays on this machine")


def test_a_guest_joins_the_rows_of_the_host(offline_trackers: Path) -> None:
    import trackio

    host = trackio.init("guest", name="run", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    guest = TrackioGuest(HostRun(), MoEBalanceConfig())
    guest.open(Run(offline_trackers))
    for step in range(10, 110, 10):
        guest.write(Export(step, {"ours": 1.0}, loads(step, 0)))
        trackio.log({"loss": step / 2, "train/global_step": step})
    guest.close()
    trackio.log({"loss": 0.0})
    assert "log" not in find_wraps(host)
    trackio.finish()
    *rows, last = trackio_logs("guest", "run")
    assert [(row["step"], row["train/global_step"], row["loss"]) for row in rows] == [
        (index, 10 * (index + 1), 5.0 * (index + 1)) for index in range(10)
    ]
    assert [row["moe_balance/layer_4/expert_0/tokens"] for row in rows] == list(range(10, 110, 10))
    assert all(trackio_image(row).shape == (384, 768, 3) for row in rows)
    assert KEY not in last
    assert not any("ours" in row for row in rows)


def test_a_guest_with_too_many_experts_for_series_has_a_picture_and_a_table(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import trackio

    trackio.init("many", name="run", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    guest = TrackioGuest(HostRun(), MoEBalanceConfig())
    guest.open(Run(offline_trackers))
    guest.write(Export(1, {}, make_loads(np.arange(4 * 32).reshape(4, 32))))
    trackio.log({"loss": 1.0})
    guest.close()
    trackio.finish()
    (row,) = trackio_logs("many", "run")
    assert trackio_image(row).ndim == 3
    assert "moe_balance/hottest_experts" in row
    assert not any("/tokens" in key for key in row)
    (message,) = messages(caplog)
    assert message.startswith("256 series, two per expert, are too many for Trackio")
