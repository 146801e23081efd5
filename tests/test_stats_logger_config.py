"""StatsLogger: what configures it, AReaL's own files and objects among it; trackers read back from disk."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.everywhere import everywhere, files_of
from support.readback import (
    swanlab_text,
    trackio_config,
    trackio_logs,
    trackio_rows,
    wandb_config,
    wandb_file,
    wandb_rows,
)

from areal_callbacks import StatsLogger
from areal_callbacks.config import StatsLoggerConfig

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


AREAL = """
experiment_name: gsm8k-grpo
trial_name: trial0
seed: 1
cluster:
  fileroot: {root}
actor:
  path: Qwen/Qwen2-1.5B-Instruct
stats_logger:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  fileroot: ${{cluster.fileroot}}
  wandb:
    mode: offline
    wandb_base_url: "http://127.0.0.1:9"
    wandb_api_key: "{key}"
    entity: null
    project: null
    name: null
    job_type: train
    group: null
    notes: null
    tags: [grpo]
    config: {{optimizer: adam, hub_token: s3cret}}
    id_suffix: train
  swanlab:
    project: null
    name: null
    config: {{optimizer: adam}}
    logdir: null
    mode: offline
    api_key: "{key}"
  tensorboard:
    path: null
  trackio:
    mode: disabled
    project: null
    name: null
    space_id: null
  per_expert_scalars: auto
"""
KEY = "0123456789abcdef0123456789abcdef01234567"


def test_a_full_configuration_of_areal_loads_and_its_keys_stay_secret(
    offline_trackers: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    offline_trackers.mkdir()
    root = offline_trackers / "logs"
    path = offline_trackers.parent / "areal.yaml"
    path.write_text(AREAL.format(root=root, key=KEY))
    with StatsLogger(path) as logger:
        logger.commit(0, 0, 0, {"a": 1.0})
    file = wandb_file(root / "gsm8k-grpo" / "trial0")
    assert file.name == "run-gsm8k-grpo_trial0_train.wandb"
    shown = wandb_config(file)
    assert (shown["optimizer"], shown["hub_token"]) == ("adam", "[redacted]")
    assert "optimizer" in swanlab_text(root)
    texts = [found.read_bytes() for found in offline_trackers.rglob("*") if found.is_file()]
    assert len(texts) > 5
    assert not any(KEY.encode() in text or b"s3cret" in text for text in texts)
    assert KEY not in capsys.readouterr().out + caplog.text + repr(logger.config) + repr(logger.config.to_dict())


@pytest.mark.parametrize("key", ["too-short-a-key", " too-short-a-key\t"])
def test_keys_that_no_server_takes_stay_secret(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], key: str
) -> None:
    wandb = {"mode": "online", "wandb_base_url": "http://127.0.0.1:9", "wandb_api_key": key}
    config = everywhere(offline_trackers, wandb=wandb, swanlab=None, trackio=None, tensorboard=None)
    with StatsLogger(config, report=False) as logger:
        logger.commit(0, 0, 0, {"a": 1.0})
    assert wandb_rows(wandb_file(files_of(config))) == {0: {"a": 1.0}}
    assert "W&B stays offline" in caplog.text
    texts = [found.read_text(errors="replace") for found in offline_trackers.parent.rglob("*") if found.is_file()]
    assert not any("too-short-a-key" in text for text in [*texts, caplog.text, *capfd.readouterr()])


@dataclass
class Section:
    """As AReaL's StatsLoggerConfig."""

    experiment_name: str
    trial_name: str
    fileroot: str
    wandb: dict[str, Any]


@dataclass
class ExperimentConfig:
    """As AReaL's BaseExperimentConfig."""

    stats_logger: Section
    seed: int = 1
    hf_token: str = "s3cret"


def test_areals_objects_are_taken_as_they_are(offline_trackers: Path, caplog: pytest.LogCaptureFixture) -> None:
    section = Section("e", "t", str(offline_trackers), {"mode": "offline", "wandb_api_key": "", "tags": None})
    spec = SimpleNamespace(total_train_epochs=2, steps_per_epoch=10, total_train_steps=20)
    with (
        caplog.at_level(logging.INFO, "areal_callbacks"),
        StatsLogger(ExperimentConfig(section), spec, report=False) as logger,
    ):
        logger.commit(0, 4, 4, [{"a": 1.0}])
    assert "epoch 1/2 step 5/10, train step 5/20 done" in caplog.messages
    file = wandb_file(offline_trackers / "e" / "t")
    assert wandb_rows(file) == {4: {"a": 1.0}}
    assert (wandb_config(file)["seed"], wandb_config(file)["hf_token"]) == (1, "[redacted]")


def test_trackio_is_off_or_on_this_machine_by_its_mode(offline_trackers: Path) -> None:
    for mode, project in (("disabled", "mode-off"), ("local", "mode-local")):
        section = {"mode": mode, "space_id": "nobody/nothing"}
        config = everywhere(offline_trackers, experiment_name=project, wandb=None, swanlab=None, tensorboard=None)
        with StatsLogger({**config, "trackio": section}, report=False) as logger:
            logger.commit(0, 0, 0, {"a": 1.0})
    assert trackio_logs("mode-off", config["trial_name"]) == []
    assert trackio_rows("mode-local", config["trial_name"]) == {0: {"a": 1.0}}


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
            "argument: stats_logger.wandb.mode: expected online, offline, disabled, shared or null, got 'onlin'",
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
