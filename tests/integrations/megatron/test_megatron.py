"""install(), uninstall() and the command: any module may hold the training loop, and errors name what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.distributed import Ranks
from support.megatron_runs import JOBS, TOKENS, metrics_by_step, tensorboard_series
from support.subprocesses import search_path

from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

pytestmark = pytest.mark.slow

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.mark.parametrize("variant", ["training", "with_callbacks"])
def test_installing_twice_measures_once_and_every_training(ranks: Ranks, tmp_path: Path, variant: str) -> None:
    line = ["--pipeline-model-parallel-size", "2", "--train-iters", "2"]
    restored = ranks.run_from(JOBS, "install_repeatedly", variant, line, {"output_dir": str(tmp_path)})
    assert restored == [[True, True, True]] * 2
    records = [record for record in read_metrics(tmp_path / "metrics.jsonl") if isinstance(record, MetricsRecord)]
    assert [record.metrics["train_perf/total_tokens"] for record in records] == [2 * TOKENS] * 2


def test_a_module_that_is_not_in_sys_modules_takes_the_callback_too(ranks: Ranks) -> None:
    found = ranks.run_from(JOBS, "install_in_a_module_that_nobody_imported")
    assert found == [[["str", "AReaLMetricsCallback"], None]] * 2


def test_a_missing_function_is_named(ranks: Ranks) -> None:
    version = importlib.metadata.version("megatron-core")
    for name in ("setup_model_and_optimizer", "train", "train_step", "training_log"):
        for message in ranks.run_from(JOBS, "install_error", "training", name, None):
            assert message.startswith(f"megatron.core {version}: a_fork.training.{name} does not exist")


def test_another_signature_is_named(ranks: Ranks) -> None:
    version = importlib.metadata.version("megatron-core")
    for message in ranks.run_from(
        JOBS, "install_error", "training", "train_step", "lambda step, model, optimizer: None"
    ):
        expected = "takes no argument 'data_iterator', but (step, model, optimizer): nothing is measured"
        assert message.startswith(f"megatron.core {version}: a_fork.training.train_step {expected}")
    for message in ranks.run_from(JOBS, "install_error", "training", "training_log", "lambda losses: None"):
        assert "a_fork.training.training_log takes no argument 'iteration'" in message


@pytest.mark.parametrize("module", ["areal_callbacks.run", "areal_callbacks.integrations.megatron"])
def test_an_unchanged_script_under_torchrun(tmp_path: Path, module: str) -> None:
    arguments = ["--train-iters", "3", "--tensorboard-dir", str(tmp_path / "tensorboard")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", module, str(SUPPORT / "megatron_lm" / "pretrain_tiny.py")]
    options = {"output_dir": str(tmp_path), "every": 2, "report": False}
    environment = {**os.environ, "PYTHONPATH": search_path(), "AREAL_CALLBACKS": json.dumps(options)}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [*command, *arguments, "--log-interval", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # two data-parallel replicas; the tail comes with the end
    assert tensorboard_series(tmp_path / "tensorboard", "train_perf/tokens") == {2: 4 * TOKENS, 3: 2 * TOKENS}
    assert set(metrics_by_step(tmp_path)) == {2, 3}


def test_without_a_script_the_command_says_how() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "areal_callbacks.integrations.megatron"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m areal_callbacks.run")
