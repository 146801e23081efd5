"""From rollout workers and training ranks to every tracker, each read back from disk with its own reader."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import Ranks
from support.everywhere import assert_trackers_equal_jsonl, everywhere
from support.readback import (
    jsonl_rows,
    messages,
    offline_environment,
    swanlab_rows,
    tensorboard_rows,
    trackio_rows,
    wandb_file,
    wandb_rows,
)

from areal_callbacks import StatsLogger
from areal_callbacks.core.merge import merge_worker_stats
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.session import MetricsSession

REWARDS = [[0.5, 1.0, -2.0], [4.0], [0.25, 0.75, 1.25, 1.75, 8.0]]  # episodes of three workers


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
def test_no_login_prompt_appears_and_the_exit_flushes(tmp_path: Path) -> None:
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
