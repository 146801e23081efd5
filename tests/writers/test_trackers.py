"""The trackers by their names: which are on, what their runs are called, and their guests in hosts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.everywhere import everywhere
from support.readback import tensorboard_rows, trackio_rows

from areal_callbacks.config import MoEBalanceConfig, StatsLoggerConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import TRACKERS, make_guests, make_writers

BALANCE = MoEBalanceConfig()


def list_kinds(root: Path, **options: Any) -> list[str]:
    return [type(writer).__name__ for writer in make_writers(StatsLoggerConfig(**everywhere(root, **options)), BALANCE)]


def test_every_tracker_of_the_configuration_is_known() -> None:
    plain = {"experiment_name", "trial_name", "fileroot", "per_expert_scalars"}
    known = {name for name, kind in TRACKERS.items() if kind.writer is not None}
    assert known == {field.name for field in fields(StatsLoggerConfig)} - plain


def test_without_a_section_nothing_is_opened() -> None:
    assert make_writers(None, BALANCE) == []
    assert make_writers(StatsLoggerConfig(), BALANCE) == []


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("wandb", {"mode": "disabled"}),
        ("swanlab", {"mode": "disabled"}),
        ("trackio", {"mode": "disabled"}),
        ("trackio", None),
        ("tensorboard", {"path": None}),
    ],
)
def test_one_tracker_can_be_off(tmp_path: Path, name: str, off: Any) -> None:
    (missing,) = set(list_kinds(tmp_path)) - set(list_kinds(tmp_path, **{name: off}))
    assert missing.lower() == f"{name}writer"


@pytest.mark.parametrize(
    ("section", "project", "run"),
    [({}, "gsm8k", "run_1"), ({"project": "mine", "name": "first"}, "mine", "first"), ({"name": ""}, "gsm8k", "run_1")],
)
def test_a_run_without_a_name_is_called_after_its_experiment_and_trial(
    offline_trackers: Path, section: dict[str, str], project: str, run: str
) -> None:
    trial = f"{run}-{offline_trackers.parent.name}" if run == "run_1" else run
    config = StatsLoggerConfig(experiment_name="gsm8k", trial_name=trial, trackio=section)  # type: ignore[arg-type]
    (writer,) = make_writers(config, BALANCE)
    writer.open(Run(offline_trackers, name="not this one"))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert trackio_rows(project, trial) == {1: {"a": 1.0}}


def test_guests_are_made_for_the_runs_that_a_host_names(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    boards = [SummaryWriter(str(tmp_path / name)) for name in ("first", "second")]
    guests = make_guests([("tensorboard", HostRun(lambda board=board: board)) for board in boards], BALANCE)
    for guest in guests:
        guest.open(Run(tmp_path))
        guest.write(Export(1, {"ours": 1.0}))
        guest.close()
    for board, name in zip(boards, ("first", "second")):
        board.add_scalar("loss", 0.5, 1)
        board.close()
        assert tensorboard_rows(tmp_path / name) == {1: {"loss": 0.5}}
