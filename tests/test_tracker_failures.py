"""Trackers that cannot open, fail or hang: training goes on, one message names them, everything else is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.everywhere import NAMES, everywhere, files_of, read_tracker
from support.readback import jsonl_rows, messages, offline_environment, swanlab_rows

from areal_callbacks import StatsLogger
from areal_callbacks.config import MoEBalanceConfig, StatsLoggerConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.trackers import make_writers

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # W&B starts its service beside threads

EXPECTED = {step: {"a": step / 2} for step in range(5)}


@pytest.mark.parametrize(
    ("broken", "section", "message"),
    [
        (
            "wandb",
            {"mode": "offline", "project": "a/b:c"},
            "WandbWriter failed to open and is switched off: UsageError",
        ),
        ("swanlab", {"mode": "offline", "logdir": __file__}, "SwanlabWriter failed to open and is switched off: "),
        ("trackio", {"project": "registry-x"}, "TrackioWriter failed to open and is switched off: ValueError"),
        ("tensorboard", {"path": f"{__file__}/tb"}, "TensorBoardWriter failed to open and is switched off: "),
    ],
)
def test_a_tracker_that_cannot_open_costs_only_itself(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture, broken: str, section: dict[str, Any], message: str
) -> None:
    config = everywhere(offline_trackers, experiment_name=f"open-{broken}")
    with StatsLogger({**config, broken: section}) as logger:
        for step, row in EXPECTED.items():
            logger.commit(0, step, step, row)
    assert jsonl_rows(files_of(config)) == EXPECTED
    for tracker in set(NAMES) - {broken}:
        assert read_tracker(tracker, config) == EXPECTED, tracker
    (told,) = messages(caplog)
    assert told.startswith(message)


@pytest.mark.parametrize("failing", ["wandb", "swanlab"])
def test_a_run_that_is_finished_meanwhile_costs_only_itself(
    offline_trackers: Path, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    import swanlab
    import wandb

    config = everywhere(offline_trackers, experiment_name=f"finished-{failing}")
    writers = {_name_of(writer): writer for writer in make_writers(StatsLoggerConfig(**config), MoEBalanceConfig())}
    failed = writers.pop(failing)
    publisher = Publisher(
        [], run=Run(files_of(config)), synchronous=[JsonlWriter(), failed], trackers=list(writers.values())
    )
    for step, row in EXPECTED.items():
        publisher.publish(Export(step, row))
        if step == 1:
            wandb.finish() if failing == "wandb" else swanlab.finish()
    publisher.close()
    assert jsonl_rows(files_of(config)) == EXPECTED
    for tracker in writers:
        assert read_tracker(tracker, config) == EXPECTED, tracker
    assert read_tracker(failing, config) == {step: EXPECTED[step] for step in (0, 1)}
    told = [message for message in messages(caplog) if "offline" not in message]
    assert len(told) == 1
    assert "failed to write and is switched off" in told[0]


def _name_of(writer: MetricWriter) -> str:
    return type(writer).__name__.removesuffix("Writer").lower()


class Hanging:
    """A user's tracker whose second log call never returns by itself."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.written: list[int] = []

    def open(self, run: Run) -> None:
        pass

    def write(self, export: Export) -> None:
        self.written.append(export.step)
        if len(self.written) == 2:
            self.released.wait(60)

    def close(self) -> None:
        pass


def test_a_tracker_that_hangs_delays_no_other(offline_trackers: Path, caplog: pytest.LogCaptureFixture) -> None:
    hanging = Hanging()
    config = everywhere(offline_trackers, experiment_name="hang")
    trackers = make_writers(StatsLoggerConfig(**config), MoEBalanceConfig())
    publisher = Publisher([], run=Run(files_of(config)), synchronous=[JsonlWriter()], trackers=[hanging, *trackers])
    begin = time.perf_counter()
    for step, row in EXPECTED.items():
        publisher.publish(Export(step, row))
    assert time.perf_counter() - begin < 2
    publisher.close(timeout=6)
    hanging.released.set()
    assert jsonl_rows(files_of(config)) == EXPECTED
    for tracker in NAMES:
        assert read_tracker(tracker, config) == EXPECTED, tracker
    told = [message for message in messages(caplog) if "offline" not in message]
    assert len(told) == 1
    assert "Hanging did not finish within" in told[0]
    assert "3 exports still waited" in told[0]


@pytest.mark.slow
def test_a_full_disk_ends_neither_the_loop_nor_the_files_that_still_fit(tmp_path: Path) -> None:
    """No file may grow beyond 256 kB, which is what a full disk does to the trackers' larger files."""
    code = """
import resource, signal, sys
import torch
from areal_callbacks import StatsLogger
from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export

root = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, 256 * 1024))
generator = torch.Generator().manual_seed(0)
with StatsLogger({
    "experiment_name": "full", "fileroot": root, "wandb": {"mode": "offline"}, "swanlab": {"mode": "offline"},
    "trackio": {}, "tensorboard": {"path": root + "/tb"},
}, report=False) as logger:
    for step in range(12):
        counts = torch.randint(0, 99, (40, 256), generator=generator)
        loads = ExpertLoads(tuple(LayerLoads("", layer, row) for layer, row in enumerate(counts)))
        logger.commit(0, step, step, Export(step, {"a": step / 2}, loads))
print("training ended")
"""
    environment = {**os.environ, **offline_environment(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "training ended" in done.stdout
    assert jsonl_rows(tmp_path / "full" / "trial") == {step: {"a": step / 2} for step in range(12)}
    # Trackio and SwanLab say themselves what they could not keep of the series of 40 x 256 experts.
    assert done.stderr.count("TensorBoardWriter failed to write and is switched off: OSError") == 1
    assert done.stderr.count("WandbWriter failed to write and is switched off: OSError") == 1
    assert done.stderr.count("is switched off") == 2
    kept = {step: row["a"] for step, row in swanlab_rows(tmp_path / "full").items() if "a" in row}
    assert kept.items() <= {step: step / 2 for step in range(12)}.items()
    assert kept[0] == 0.0
