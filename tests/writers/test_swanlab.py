"""SwanLab, offline: what is in the run file and the media files afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import swanlab
import torch
from support.readback import messages, swanlab_charts, swanlab_rows, swanlab_text
from support.report_runs import loads as make_loads
from support.tracker_conformance import RunConformance, publish

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import SwanlabConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.swanlab import SwanlabGuest, SwanlabWriter, find_swanlab_run
from areal_callbacks.writers.tracker_runs import HostRun

OFFLINE = SwanlabConfig(mode="offline", project="p")
BALANCE = MoEBalanceConfig()


def loads(*counts: int) -> ExpertLoads:
    return make_loads({("", 4): counts})


def written(folder: Path, *exports: Export, **balance: Any) -> None:
    publish(folder, SwanlabWriter(OFFLINE, MoEBalanceConfig(**balance)), *exports)


class TestConformance(RunConformance):
    name, kind = "swanlab", "SwanLab run"

    def section(self, folder: Path) -> SwanlabConfig:
        return OFFLINE

    def rows(self, folder: Path) -> dict[int, dict[str, float]]:
        return swanlab_rows(folder)

    def search(self, folder: Path) -> str:
        return swanlab_text(folder / "swanlog")


def test_repeated_and_earlier_steps_numpy_and_tensors_lose_nothing(offline_trackers: Path) -> None:
    steps = [np.int64(5), np.int64(5), 3, 9]
    values: list[Any] = [np.float32(0.5), torch.tensor(1.5), np.int64(7), torch.tensor([2.5])]
    written(offline_trackers, *(Export(step, {"a": value}) for step, value in zip(steps, values)))
    assert swanlab_rows(offline_trackers) == {
        5: {"a": 0.5},
        6: {"a": 1.5, "global_step": 5},
        7: {"a": 7, "global_step": 3},
        9: {"a": 2.5},
    }


def test_loads_arrive_as_a_heat_map_and_as_series(offline_trackers: Path) -> None:
    written(
        offline_trackers, Export(1, {}, loads(1, 3)), Export(2, {}, loads(5, 5)), Export(3, {}), expert_table_every=2
    )
    assert swanlab_rows(offline_trackers) == {
        step: {
            "moe_balance/layer_4/expert_0/tokens": first,
            "moe_balance/layer_4/expert_0/load_percent": share,
            "moe_balance/layer_4/expert_1/tokens": second,
            "moe_balance/layer_4/expert_1/load_percent": 100 - share,
        }
        for step, first, second, share in ((1, 1, 3, 25.0), (2, 5, 5, 50.0))
    }
    charts = swanlab_charts(offline_trackers)
    assert list(charts) == [2]
    assert charts[2][0]["series"][0]["data"] == [[0, 0, 0.8571, 6, 42.8571], [1, 0, 1.1429, 8, 57.1429]]
    assert charts[2][0]["yAxis"]["data"] == ["4"]


def test_many_experts_are_a_heat_map_only(offline_trackers: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(offline_trackers, Export(1, {"a": 1.0}, loads(*range(513))))
    assert swanlab_rows(offline_trackers) == {1: {"a": 1.0}}
    assert len(swanlab_charts(offline_trackers)[1][0]["series"][0]["data"]) == 513
    assert [message[:12] for message in messages(caplog)] == ["1,026 series"]


@pytest.mark.parametrize("mode", ["online", "cloud", None])
def test_online_without_a_key_stays_offline_with_one_message(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    writer = SwanlabWriter(SwanlabConfig(mode=mode), BALANCE)
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert swanlab_rows(offline_trackers) == {1: {"a": 1.0}}
    assert messages(caplog) == ["SwanLab stays offline, `swanlab sync` uploads the run later: no API key is configured"]


def test_without_the_local_dashboard_the_run_is_kept_offline(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SwanlabWriter(SwanlabConfig(mode="local"), BALANCE)
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert swanlab_rows(offline_trackers) == {1: {"a": 1.0}}
    (message,) = messages(caplog)
    assert message.endswith("mode local needs its dashboard: pip install 'swanlab[dashboard]'")


@pytest.mark.parametrize(("environment", "mode", "files"), [("disabled", None, 0), ("disabled", "offline", 1)])
def test_the_environment_decides_unless_a_mode_is_set(
    offline_trackers: Path, monkeypatch: pytest.MonkeyPatch, environment: str, mode: Any, files: int
) -> None:
    monkeypatch.setenv("SWANLAB_MODE", environment)
    writer = SwanlabWriter(SwanlabConfig(mode=mode), BALANCE)
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert len(list(offline_trackers.rglob("*.swanlab"))) == files


def test_the_folder_can_be_chosen(offline_trackers: Path) -> None:
    writer = SwanlabWriter(SwanlabConfig(mode="offline", logdir=str(offline_trackers.parent / "elsewhere")), BALANCE)
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert swanlab_rows(offline_trackers.parent / "elsewhere") == {1: {"a": 1.0}}


def test_a_run_that_is_open_already_is_used_and_stays_open(offline_trackers: Path) -> None:
    host = swanlab.init(mode="offline", project="p", log_dir=str(offline_trackers))
    try:
        writer = SwanlabWriter(OFFLINE, BALANCE)
        writer.open(Run(offline_trackers))
        writer.write(Export(40, {"a": 1.0}))
        writer.close()
        assert find_swanlab_run() is host
    finally:
        host.finish()
    assert swanlab_rows(offline_trackers) == {40: {"a": 1.0}}


def test_a_second_logger_does_not_mix_its_numbers_into_the_run_of_the_first(offline_trackers: Path) -> None:
    first, second = SwanlabWriter(OFFLINE, BALANCE), SwanlabWriter(OFFLINE, BALANCE)
    first.open(Run(offline_trackers))
    with pytest.raises(RuntimeError, match="another logger has a run open"):
        second.open(Run(offline_trackers))
    second.close()
    first.write(Export(1, {"a": 1.0}))
    first.close()
    second.open(Run(offline_trackers.parent / "later"))
    second.close()


def test_a_guest_adds_to_the_steps_of_the_host(offline_trackers: Path) -> None:
    host = swanlab.init(mode="offline", project="p", log_dir=str(offline_trackers))
    guest = SwanlabGuest(HostRun(), MoEBalanceConfig(per_expert_scalars=False))
    guest.open(Run(offline_trackers))
    for step in range(1, 11):
        guest.write(Export(step, {"ours": 1.0}, loads(step, step)))
        host.log({"loss": step / 2}, step=step)
    guest.close()
    host.finish()
    assert swanlab_rows(offline_trackers) == {step: {"loss": step / 2} for step in range(1, 11)}
    tokens = {step: chart["series"][0]["data"][0][3] for step, (chart,) in swanlab_charts(offline_trackers).items()}
    assert tokens == {step: step for step in range(1, 11)}


def test_a_guest_with_too_many_experts_for_series_has_a_heat_map(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = swanlab.init(mode="offline", project="p", log_dir=str(offline_trackers))
    guest = SwanlabGuest(HostRun(), MoEBalanceConfig())
    guest.open(Run(offline_trackers))
    guest.write(Export(1, {}, make_loads(np.arange(4 * 32).reshape(4, 32))))
    host.log({"loss": 1.0}, step=1)
    guest.close()
    host.finish()
    assert swanlab_rows(offline_trackers) == {1: {"loss": 1.0}}
    ((chart,),) = swanlab_charts(offline_trackers).values()
    assert len(chart["series"][0]["data"]) == 4 * 32
    (message,) = messages(caplog)
    assert message.startswith("256 series, two per expert, are too many for SwanLab")
