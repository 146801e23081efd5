"""StatsLogger: from rollout workers and training ranks to every tracker, each read back from disk."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Ranks
from writers.readback import (
    equal,
    jsonl_rows,
    messages,
    offline_environment,
    single,
    swanlab_rows,
    tensorboard_rows,
    trackio_config,
    trackio_rows,
    wandb_file,
    wandb_history,
    wandb_rows,
    wandb_table,
)

from areal_callbacks import StatsLogger
from areal_callbacks.config import StatsLoggerConfig
from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.merge import merge_worker_stats
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import Export
from areal_callbacks.session import MetricsSession

REWARDS = [[0.5, 1.0, -2.0], [4.0], [0.25, 0.75, 1.25, 1.75, 8.0]]  # episodes of three workers
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


def everywhere(root: Path, **options: Any) -> dict[str, Any]:
    return {
        "experiment_name": "flow",
        "trial_name": root.parent.name[-40:],
        "fileroot": str(root),
        "wandb": {"mode": "offline"},
        "swanlab": {"mode": "offline"},
        "trackio": {},
        "tensorboard": {"path": str(root / "tb")},
        **options,
    }


def files_of(config: dict[str, Any]) -> Path:
    return Path(config["fileroot"], config["experiment_name"], config["trial_name"])


def assert_trackers_equal_jsonl(config: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Every tracker's rows, read with its own reader, are those of metrics.jsonl."""
    folder = files_of(config)
    expected = jsonl_rows(folder)
    trackers = {
        "wandb": wandb_rows(wandb_file(folder)),
        "swanlab": swanlab_rows(folder),
        "trackio": trackio_rows(config["experiment_name"], config["trial_name"]),
    }
    for name, rows in trackers.items():
        assert rows.keys() == expected.keys(), name
        assert all(equal(rows[step], expected[step]) for step in rows), name
    events = tensorboard_rows(Path(config["tensorboard"]["path"]))
    assert events.keys() == expected.keys()
    assert all(equal(events[step], single(expected[step])) for step in events)
    return expected


# -- the whole data flow


def rank_batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability differences of unequal batches, and their masks."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(3 + rank, 7, generator=generator)
    return values, torch.rand(values.shape, generator=generator) < 0.6


def train(group: Any) -> dict[str, float]:
    tracker = StatsTracker()
    values, mask = rank_batch(torch.distributed.get_rank(group))
    with tracker.scope("ppo_actor/train_infer"):
        tracker.denominator(n_valid_tokens=mask)
        tracker.stat("n_valid_tokens", logp_abs_diff=values.abs())
    return tracker.export(reduce_group=group)


async def roll_out() -> list[dict[str, float]]:
    """Three workers, each with its own tracker; their episodes interleave."""

    async def episode(tracker: StatsTracker, reward: float) -> None:
        await asyncio.sleep(0)
        tracker.scalar(reward=reward)

    workers = [StatsTracker("rollout") for _ in REWARDS]
    await asyncio.gather(*(episode(worker, reward) for worker, rewards in zip(workers, REWARDS) for reward in rewards))
    return [worker.export() for worker in workers]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # W&B starts its service from a process with threads
def test_from_rollout_workers_and_training_ranks_to_every_tracker(
    offline_trackers: Path, two_ranks: Ranks, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = everywhere(offline_trackers)
    with StatsLogger(config) as logger:
        for global_step in range(3):
            first, second = two_ranks.run(train)
            assert first == second
            stats = dict(first)
            stats.update(merge_worker_stats(asyncio.run(roll_out())))
            logger.commit(0, global_step, global_step, stats)
    rows = assert_trackers_equal_jsonl(config)
    assert list(rows) == [0, 1, 2]

    values, masks = zip(*(rank_batch(rank) for rank in range(2)))
    kept = np.concatenate([value.abs().double().numpy()[mask.numpy()] for value, mask in zip(values, masks)])
    scope = "ppo_actor/train_infer"
    assert rows[2] == {
        f"{scope}/n_valid_tokens": len(kept),
        f"{scope}/logp_abs_diff/avg": pytest.approx(kept.mean(), rel=1e-12),
        f"{scope}/logp_abs_diff/min": kept.min(),
        f"{scope}/logp_abs_diff/max": kept.max(),
        "rollout/reward": pytest.approx(np.mean([reward for worker in REWARDS for reward in worker]), rel=1e-12),
    }
    printed = capsys.readouterr().out
    assert printed.count("AReaL metrics, step 2") == 1
    assert f"logp_abs_diff/avg  {kept.mean():.3g}" in " ".join(printed.split("\n")).replace("   ", "  ")
    assert messages(caplog) == []


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


# -- a session that owns its trackers


def test_a_plain_loop_logs_to_the_trackers_of_its_configuration(offline_trackers: Path) -> None:
    config = everywhere(offline_trackers, experiment_name="plain")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MetricsSession(stats_logger=config).attach(model, optimizer) as session:
        for step in range(1, 4):
            session.begin()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            session.end()
            session.tracker.scalar(step_squared=step * step)
            session.export(step, host={"loss": 1.0 / step})
    rows = assert_trackers_equal_jsonl(config)
    assert [row["step_squared"] for row in rows.values()] == [1, 4, 9]
    assert [row["loss"] for row in rows.values()] == [1.0, 0.5, 1.0 / 3]
    assert all(row["train_perf/seconds"] > 0 for row in rows.values())


# -- the end of a process


@pytest.mark.slow
def test_nobody_is_asked_to_log_in_and_the_exit_flushes(tmp_path: Path) -> None:
    code = """
import sys
from areal_callbacks import StatsLogger
assert sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
root = sys.argv[1]
logger = StatsLogger({
    "experiment_name": "exit", "fileroot": root, "wandb": {"mode": "online"}, "swanlab": {"mode": "online"},
    "trackio": {}, "tensorboard": {"path": root + "/tb"},
})
for step in range(20):
    logger.commit(0, step, step, {"a": step / 2})
"""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "SWANLAB"))}
    environment |= offline_environment(tmp_path)
    done = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    screen = _read(ours)
    assert done.wait(timeout=60) == 0, screen
    assert screen.count("W&B stays offline") == screen.count("SwanLab stays offline") == 1
    expected = {step: {"a": step / 2} for step in range(20)}
    folder = tmp_path / "exit" / "trial"
    assert jsonl_rows(folder) == wandb_rows(wandb_file(folder)) == swanlab_rows(folder) == expected
    assert tensorboard_rows(tmp_path / "tb") == trackio_rows("exit", "trial") == expected
    assert (folder / "report.html").exists()


def _read(terminal: int) -> str:
    """What a process prints to a terminal until it ends."""
    text = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of the other side this way
            part = b""
        if not part:
            os.close(terminal)
            return text.decode(errors="replace")
        text += part
