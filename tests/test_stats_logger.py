"""StatsLogger: commits and steps; metrics.jsonl and trackers read back from disk."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import Ranks
from support.everywhere import everywhere, files_of, read_tracker
from support.readback import (
    jsonl_rows,
    messages,
    trackio_rows,
    wandb_file,
    wandb_history,
    wandb_rows,
    wandb_table,
)

from areal_callbacks import StatsLogger
from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export


def commit_on_every_rank(group: Any, folder: str) -> list[str]:
    rank = torch.distributed.get_rank(group)
    root = Path(folder, str(rank))
    with StatsLogger({"fileroot": str(root), "tensorboard": {"path": str(root / "tb")}}, report=False) as logger:
        logger.commit(0, 0, 0, {"a": 1.0} if rank == 0 else None)  # type: ignore[arg-type]
    return sorted(path.name.split(".")[0] for path in root.rglob("*") if path.is_file())


def test_rank_0_alone_writes(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.run(commit_on_every_rank, str(tmp_path))
    assert first == ["events", "metrics"]
    assert second == []


# -- commits


def test_a_list_becomes_consecutive_steps_and_counts_are_dropped(tmp_path: Path) -> None:
    config = {"fileroot": str(tmp_path), "experiment_name": "e", "trial_name": "t"}
    with StatsLogger(config, report=False) as logger:
        logger.commit(0, 0, 0, [{"a": 1.0, "a__count": 3}, {"a": 2.0}, {"b": np.int64(3), "c": torch.tensor(0.5)}])
        logger.commit(0, 1, 1, {"a": 4.0})
        logger.commit(0, 1, 1, {"a": 5.0})
        logger.commit(1, 0, 40, {"a": math.inf})
        logger.commit(1, 1, 3, [{"a": 6.0}, {}])
    assert jsonl_rows(tmp_path / "e" / "t") == {
        0: {"a": 1.0},
        1: {"a": 2.0},
        2: {"b": 3, "c": 0.5},
        3: {"a": 4.0},
        4: {"a": 5.0},
        40: {"a": math.inf},
        41: {"a": 6.0},
        42: {},
    }


def test_steps_go_on_after_a_restart(tmp_path: Path) -> None:
    config = {"fileroot": str(tmp_path)}
    with StatsLogger(config, report=False) as logger:
        logger.commit(0, 0, 7, [{"a": 1.0}, {"a": 2.0}])
        state = logger.state_dict()
    assert state == {"last_commit_step": 8}
    with StatsLogger(config, report=False) as resumed:
        resumed.load_state_dict(state)
        resumed.commit(0, 1, 8, {"a": 3.0})
        resumed.close()
        resumed.close()
    assert jsonl_rows(tmp_path / "areal" / "trial") == {7: {"a": 1.0}, 8: {"a": 2.0}, 9: {"a": 3.0}}


def test_what_is_no_number_is_left_out_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StatsLogger({"fileroot": str(tmp_path)}, report=False) as logger:
        for step in range(3):
            logger.commit(0, step, step, {"a": 1.0, "word": "x", "vector": torch.zeros(2), "none": None})
    assert jsonl_rows(tmp_path / "areal" / "trial") == {step: {"a": 1.0} for step in range(3)}
    assert [message.split(" is ")[0] for message in messages(caplog)] == ["'word'", "'vector'", "'none'"]


def test_progress_is_logged_counting_from_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "areal_callbacks"), StatsLogger({"fileroot": str(tmp_path)}) as logger:
        logger.commit(1, 2, 12, {"a": 1.0})
    assert "epoch 2 step 3, train step 13 done" in caplog.messages
    assert (tmp_path / "areal" / "trial" / "report.html").stat().st_size > 0


def test_an_export_brings_its_expert_loads(offline_trackers: Path) -> None:
    loads = ExpertLoads((LayerLoads("", 0, torch.tensor([1, 3])),))
    config = everywhere(offline_trackers, trackio=None, swanlab=None, tensorboard=None)
    with StatsLogger(config) as logger:
        logger.commit(0, 0, 0, [{"a": 1.0}, Export(99, {"b": 2.0, "b__count": 1.0}, loads)])
    file = wandb_file(files_of(config))
    assert wandb_rows(file) == {0: {"a": 1.0}, 1: {"b": 2.0}}
    assert wandb_table(file, wandb_history(file)[1])[1] == [[0, 0, 1, 25.0], [0, 1, 3, 75.0]]
    (report,) = file.parent.rglob("*.html")
    assert report.read_text().lower().startswith("<!doctype html>")


# -- flat keys of single experts


FLAT = {
    "moe_balance/layer_0/expert_0/tokens": 6,
    "moe_balance/layer_0/expert_0/load_percent": 75.0,
    "moe_balance/layer_0/expert_1/tokens": 2,
    "moe_balance/layer_0/expert_1/load_percent": 25.0,
}


def test_areals_flat_keys_become_a_table_a_step_and_series_where_they_belong(
    offline_trackers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = everywhere(offline_trackers, experiment_name="flat")
    scalars = {"moe_balance/layer_0/max_over_ideal": 1.5, "ppo_actor/x/avg": 0.5}
    with StatsLogger(config, report=False) as logger:
        for step in (3, 3, 7):
            logger.commit(0, step, step, {**FLAT, **scalars, "ppo_actor/x__count": 2})
    file = wandb_file(files_of(config))
    history = {row["_step"]: row for row in wandb_history(file)}
    assert list(history) == [3, 4, 7]
    for row in history.values():
        columns, table = wandb_table(file, row)
        assert columns == ["layer", "expert", "tokens", "load_percent"]
        assert table == [[0, 0, 6, 75.0], [0, 1, 2, 25.0]]
    with_series = {**scalars, **FLAT}
    assert wandb_rows(file) == dict.fromkeys((3, 4, 7), scalars)
    assert read_tracker("tensorboard", config) == dict.fromkeys((3, 4, 7), scalars)
    assert jsonl_rows(files_of(config)) == dict.fromkeys((3, 4, 7), scalars)
    assert read_tracker("swanlab", config) == dict.fromkeys((3, 4, 7), with_series)
    kept = trackio_rows("flat", config["trial_name"])
    assert all(row == with_series for row in kept.values())
    shown = capsys.readouterr().out
    assert "moe_balance/layer_0 " in shown
    assert "expert_0" not in shown


def test_a_layer_of_many_experts_keeps_all_its_series(offline_trackers: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = everywhere(offline_trackers, wandb=None, trackio=None, tensorboard=None)
    many = {f"moe_balance/layer_{layer}/expert_{e}/tokens": e for layer in range(3) for e in range(600)}
    with StatsLogger(config, report=False) as logger:
        logger.commit(0, 0, 0, many)
    (row,) = read_tracker("swanlab", config).values()
    assert len(row) == 2 * 1800
    assert {name: row[name] for name in many} == many
    assert messages(caplog) == []


@pytest.mark.parametrize("setting", [False, "auto"])
def test_the_series_can_be_switched_off(offline_trackers: Path, setting: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = everywhere(offline_trackers, wandb=None, trackio=None, tensorboard=None, per_expert_scalars=setting)
    many = {f"moe_balance/layer_0/expert_{expert}/tokens": expert for expert in range(65)}
    with StatsLogger(config, report=False) as logger:
        logger.commit(0, 0, 0, {**many, "a": 1.0})
    assert read_tracker("swanlab", config) == {0: {"a": 1.0}}
    assert [message for message in messages(caplog) if "per_expert_scalars: true" in message] == messages(caplog)


def test_every_heading_on_the_console_has_numbers_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StatsLogger({"fileroot": str(tmp_path)}, report=False) as logger:
        logger.commit(0, 0, 0, {"actor_loss": 0.25})
        logger.commit(0, 1, 1, {})
        logger.commit(0, 2, 2, {f"key_{number}": number for number in range(30)})
        logger.commit(0, 3, 3, FLAT)
    blocks = [block.splitlines() for block in capsys.readouterr().out.split("AReaL metrics, ")[1:]]
    assert [lines[0] for lines in blocks] == ["step 0", "step 2", "step 3"]
    assert blocks[0][1].split() == ["actor_loss", "0.25"]
    assert blocks[1][21].split() == ["and", "10", "more", "in", "metrics.jsonl"]
    assert any(line.split()[:2] == ["moe_balance/layer_0", "1.500"] for line in blocks[2])
