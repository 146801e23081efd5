"""W&B, offline: what is in the run file and the media files afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import wandb
from support.readback import messages, wandb_config, wandb_file, wandb_history, wandb_rows, wandb_table
from support.report_runs import loads as make_loads
from support.tracker_conformance import RunConformance, publish

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import WandbConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.wandb import WandbGuest, WandbWriter, find_wandb_run

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*use of fork:DeprecationWarning",  # the client starts its service from a process with threads
)

OFFLINE = WandbConfig(mode="offline", project="p")
BALANCE = MoEBalanceConfig()
KEY = "moe_balance/expert_loads"


def loads(scale: int, layers: int = 2, experts: int = 3) -> ExpertLoads:
    return make_loads(np.arange(1, layers * experts + 1).reshape(layers, experts) * scale)


def written(folder: Path, *exports: Export, **balance: Any) -> Path:
    """The finished run file."""
    publish(folder, WandbWriter(OFFLINE, MoEBalanceConfig(**balance)), *exports)
    return wandb_file(folder)


class TestConformance(RunConformance):
    name, kind = "wandb", "W&B run"

    def section(self, folder: Path) -> WandbConfig:
        return OFFLINE

    def rows(self, folder: Path) -> dict[int, dict[str, float]]:
        return wandb_rows(wandb_file(folder))

    def search(self, folder: Path) -> str:
        file = wandb_file(folder)
        texts = [path.read_text(errors="replace") for path in file.parent.rglob("*") if path.is_file()]
        return "\n".join([json.dumps(wandb_config(file)), *texts])


def test_repeated_and_earlier_steps_numpy_and_tensors_lose_nothing(offline_trackers: Path) -> None:
    steps = [np.int64(5), np.int64(5), 3, 9]
    values: list[Any] = [np.float32(0.5), torch.tensor(1.5), np.int64(7), torch.tensor([2.5])]
    file = written(offline_trackers, *(Export(step, {"a": value}) for step, value in zip(steps, values)))
    assert wandb_rows(file) == {
        5: {"a": 0.5},
        6: {"a": 1.5, "global_step": 5},
        7: {"a": 7, "global_step": 3},
        9: {"a": 2.5},
    }


def test_the_table_lies_in_the_row_of_its_step(offline_trackers: Path) -> None:
    file = written(offline_trackers, Export(1, {"a": 1.0}, loads(1)), Export(2, {"a": 2.0}), Export(3, {}, loads(10)))
    history = {row["_step"]: row for row in wandb_history(file)}
    assert [step for step, row in history.items() if f"{KEY}/_type" in row] == [1, 3]
    assert history[1]["a"] == 1.0
    columns, rows = wandb_table(file, history[3])
    assert columns == ["layer", "expert", "tokens", "load_percent"]
    assert [row[:3] for row in rows] == [[0, 0, 10], [0, 1, 20], [0, 2, 30], [1, 0, 40], [1, 1, 50], [1, 2, 60]]
    np.testing.assert_allclose([row[3] for row in rows], np.array([1 / 6, 2 / 6, 3 / 6, 4 / 15, 5 / 15, 6 / 15]) * 100)
    assert not any(key.startswith("moe_balance/layer") for row in history.values() for key in row)


def test_a_table_of_14848_rows_is_complete(offline_trackers: Path) -> None:
    many = loads(1, layers=58, experts=256)
    limit = wandb.Table.MAX_ROWS
    file = written(offline_trackers, Export(1, {}, many))
    (row,) = wandb_history(file)
    _, rows = wandb_table(file, row)
    assert len(rows) == row[f"{KEY}/nrows"] == 58 * 256 == 14848
    expected = np.arange(1, 14849).reshape(58, 256)
    np.testing.assert_array_equal(np.array([cells[2] for cells in rows]).reshape(58, 256), expected)
    shares = np.array([cells[3] for cells in rows]).reshape(58, 256)
    np.testing.assert_allclose(shares, 100 * expected / expected.sum(1, keepdims=True))
    assert [rows[-1][0], rows[-1][1]] == [57, 255]
    assert limit == wandb.Table.MAX_ROWS


def test_a_rarer_table_holds_the_counts_since_the_one_before(offline_trackers: Path) -> None:
    file = written(offline_trackers, *(Export(step, {}, loads(step)) for step in range(1, 6)), expert_table_every=2)
    tables = {row["_step"]: wandb_table(file, row)[1] for row in wandb_history(file) if f"{KEY}/_type" in row}
    assert {step: rows[0][2] for step, rows in tables.items()} == {2: 1 + 2, 4: 3 + 4}


def test_a_table_that_refuses_the_fast_path_is_filled_the_slow_way(
    offline_trackers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strict(wandb.Table):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "data" and hasattr(self, "data"):
                raise AttributeError("data is read-only")
            super().__setattr__(name, value)

    monkeypatch.setattr(wandb, "Table", Strict)
    file = written(offline_trackers, Export(1, {}, loads(1)))
    assert [row[2] for row in wandb_table(file, wandb_history(file)[0])[1]] == [1, 2, 3, 4, 5, 6]


def test_online_without_a_key_stays_offline_with_one_message(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = WandbWriter(WandbConfig(mode="online"), BALANCE)
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert wandb_rows(wandb_file(offline_trackers)) == {1: {"a": 1.0}}
    assert messages(caplog) == ["W&B stays offline, `wandb sync` uploads the run later: no API key is configured"]


@pytest.mark.parametrize(("environment", "mode", "files"), [("disabled", None, 0), ("disabled", "offline", 1)])
def test_the_environment_decides_unless_a_mode_is_set(
    offline_trackers: Path, monkeypatch: pytest.MonkeyPatch, environment: str, mode: Any, files: int
) -> None:
    monkeypatch.setenv("WANDB_MODE", environment)
    writer = WandbWriter(WandbConfig(mode=mode), BALANCE)
    writer.open(Run(offline_trackers))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert len(list(offline_trackers.rglob("*.wandb"))) == files


def test_a_run_that_is_open_already_is_used_and_stays_open(offline_trackers: Path) -> None:
    host = wandb.init(mode="offline", project="p", dir=str(offline_trackers.parent))
    try:
        writer = WandbWriter(OFFLINE, BALANCE)
        writer.open(Run(offline_trackers))
        host.log({"loss": 1.0})
        writer.write(Export(40, {"a": 1.0}, loads(1)))
        host.log({"loss": 2.0})
        writer.close()
        assert find_wandb_run() is host
    finally:
        host.finish()
    file = wandb_file(offline_trackers.parent, host.id)
    assert wandb_rows(file) == {0: {"loss": 1.0}, 1: {"a": 1.0, "global_step": 40}, 2: {"loss": 2.0}}
    assert not offline_trackers.exists()


def test_two_loggers_have_a_run_each(offline_trackers: Path) -> None:
    writers = {name: WandbWriter(OFFLINE, BALANCE) for name in ("first", "second")}
    for name, writer in writers.items():
        writer.open(Run(offline_trackers / name))
    for step in range(3):
        for name, writer in writers.items():
            writer.write(Export(step, {name: float(step)}))
    writers["first"].close()
    writers["second"].write(Export(3, {"second": 3.0}))
    writers["second"].close()
    for name, steps in (("first", 3), ("second", 4)):
        assert wandb_rows(wandb_file(offline_trackers / name)) == {step: {name: float(step)} for step in range(steps)}


@pytest.mark.parametrize("host_passes_steps", [False, True])
def test_a_guest_puts_its_table_into_the_row_that_the_host_logs(
    offline_trackers: Path, host_passes_steps: bool
) -> None:
    host = wandb.init(mode="offline", project="p", dir=str(offline_trackers))
    host_run = HostRun(lambda: host, step_key=None if host_passes_steps else "train/global_step")
    guest = WandbGuest(host_run, MoEBalanceConfig(expert_table_every=2))
    guest.open(Run(offline_trackers))
    for step in range(10, 110, 10):
        guest.write(Export(step, {"ours": 1.0}, loads(step)))
        if host_passes_steps:
            host.log({"loss": step / 10}, step=step)
        else:
            host.log({"loss": step / 10, "train/global_step": step})
    guest.close()
    host.finish()
    file = wandb_file(offline_trackers, host.id)
    history = wandb_history(file)
    assert [row["loss"] for row in history] == list(range(1, 11))
    steps = [row["_step" if host_passes_steps else "train/global_step"] for row in history]
    assert steps == list(range(10, 110, 10))
    tables = {step: wandb_table(file, row)[1][0][2] for step, row in zip(steps, history) if f"{KEY}/_type" in row}
    assert tables == {20: 30, 40: 70, 60: 110, 80: 150, 100: 190}
    assert not any("ours" in row for row in history)
