"""StatsLogger: configuration, commits and steps; metrics.jsonl and trackers read back from disk."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import Ranks
from support.everywhere import everywhere, files_of
from support.readback import jsonl_rows, messages, trackio_config, wandb_file, wandb_history, wandb_rows, wandb_table

from areal_callbacks import StatsLogger
from areal_callbacks.config import StatsLoggerConfig
from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export

SPECIFIED = """
stats_logger:
  experiment_name: "gsm8k_grpo"
  trial_name: "run_001"
  fileroot: "{root}"
  wandb:
    mode: "offline"
    project: "my-project"
    entity: "my-team"
  swanlab:
    mode: "disabled"
    project: "my-project"
  tensorboard:
    path: {path}
actor:
  lr: 1.0e-6
"""


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


# -- configuration


@pytest.mark.parametrize("path", ["null", '"{root}/tb"'])
def test_the_specified_yaml_is_read(offline_trackers: Path, path: str) -> None:
    offline_trackers.mkdir()
    file = offline_trackers / "config.yaml"
    root = offline_trackers / "logs"
    file.write_text(SPECIFIED.replace("{path}", path).replace("{root}", str(root)))
    with StatsLogger(file) as logger:
        logger.commit(0, 0, 0, {"a": 1.0})
    assert wandb_rows(wandb_file(root / "gsm8k_grpo" / "run_001")) == {0: {"a": 1.0}}
    assert (root / "tb").exists() is (path != "null")
    assert list(offline_trackers.rglob("*.swanlab")) == []


def test_secrets_of_the_experiment_stay_here(offline_trackers: Path) -> None:
    config = everywhere(offline_trackers, experiment_name="secrets", wandb=None, swanlab=None, tensorboard=None)
    with StatsLogger(config, run_config={"actor": {"lr": 1e-6}, "hf_token": "s3cret"}, report=False) as logger:
        logger.commit(0, 0, 0, {"a": 1.0})
    sent = trackio_config("secrets", config["trial_name"])
    assert (sent["actor"], sent["hf_token"]) == ({"lr": 1e-6}, "[redacted]")
    assert "s3cret" not in (files_of(config) / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"wandb": {"mode": "onlin"}},
            "argument: stats_logger.wandb.mode: expected online, offline, disabled or null, got 'onlin'",
        ),
        ({"wandbb": None}, "argument: stats_logger.wandbb: unknown key; did you mean 'wandb'"),
        (3, "argument: stats_logger: expected a mapping of keys to values, got 3"),
        ("nowhere.yaml", "nowhere.yaml: cannot read this configuration file"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_choices(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StatsLogger(config)


def test_a_file_without_the_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("actor: {lr: 1}\n")
    with pytest.raises(ValueError, match="this file has no stats_logger section"):
        StatsLogger(tmp_path / "other.yaml")
    (tmp_path / "torn.yaml").write_text("actor: {lr\n")
    with pytest.raises(ValueError, match="malformed YAML"):
        StatsLogger(tmp_path / "torn.yaml")


def test_without_a_commit_nothing_is_opened(tmp_path: Path) -> None:
    StatsLogger(StatsLoggerConfig(fileroot=str(tmp_path / "logs"))).close()
    assert list(tmp_path.iterdir()) == []
