"""What a run stands on is broken under every host: the training ends with the same weights, and in few words."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import hosts
from support.disks import files_end_at
from support.fault_table import Fault, faults

from areal_callbacks import MetricsSession, register_flops_estimator, stats_tracker
from areal_callbacks.flops import registry

pytestmark = pytest.mark.slow

Broken = Callable[[Path], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def directory(folder: Path) -> Iterator[None]:
    (folder / "metrics.jsonl").mkdir()
    yield


@contextlib.contextmanager
def pipe(folder: Path) -> Iterator[None]:
    os.mkfifo(folder / "metrics.jsonl")
    yield


@contextlib.contextmanager
def disk(_: Path) -> Iterator[None]:
    with files_end_at(0):
        yield


@contextlib.contextmanager
def statistics(_: Path) -> Iterator[None]:
    stats_tracker.scalar(bad=torch.ones((), device="meta"))
    stats_tracker.stat_compact(torch.ones(2, dtype=torch.bool), worse=torch.ones(2, device="meta"))
    yield
    stats_tracker.collect_all()


@contextlib.contextmanager
def estimator(_: Path) -> Iterator[None]:
    def fail(_: Any) -> Any:
        raise RuntimeError("planted")

    with pytest.MonkeyPatch.context() as patch:
        for name, value in vars(registry).items():
            if isinstance(value, dict) and not name.startswith("__"):
                patch.setattr(registry, name, dict(value))
        register_flops_estimator("qwen3_moe", fail)
        yield


@contextlib.contextmanager
def handler(folder: Path) -> Iterator[None]:
    """Of the user's logging; raised by the message about a key without a value."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("planted")

    ours, raising = logging.getLogger("areal_callbacks"), Raising()
    ours.addHandler(raising)
    try:
        with statistics(folder):
            yield
    finally:
        ours.removeHandler(raising)


@contextlib.contextmanager
def terminal(_: Path) -> Iterator[None]:
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stdout(closed):
        yield


@contextlib.contextmanager
def session(folder: Path) -> Iterator[None]:
    with MetricsSession(output_dir=folder / "earlier", report=False):
        yield


@contextlib.contextmanager
def threads(_: Path) -> Iterator[None]:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


BROKEN: dict[str, tuple[Broken, str]] = {
    "directory": (directory, "a folder stands where metrics.jsonl should be"),
    "pipe": (pipe, "metrics.jsonl is a pipe that nobody reads"),
    "disk": (disk, "the disk is full from the first byte on"),
    "statistics": (statistics, "tensors without memory are recorded"),
    "estimator": (estimator, "the FLOPs estimator of the model raises"),
    "handler": (handler, "a handler of the logging module raises"),
    "terminal": (terminal, "standard output is closed"),
    "session": (session, "another session is open"),
    "threads": (threads, "no thread can be started"),
}
NAMES = {
    "transformers": "Hugging Face Trainer",
    "lightning": "Lightning",
    "fabric": "Fabric",
    "accelerate": "Accelerate",
    "loop": "plain loops",
}
PROMISED = "the training ends with the same weights"
ROWS = {f"{host}-{case}": Fault(NAMES[host], BROKEN[case][1], PROMISED) for host in hosts.HOSTS for case in BROKEN}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], torch.Tensor]:
    """The weights without us, of each host once."""
    known: dict[str, torch.Tensor] = {}

    def of(host: str) -> torch.Tensor:
        if host not in known:
            known[host] = weights(host, tmp_path_factory.mktemp("without"), measure=False)
        return known[host]

    return of


def weights(host: str, folder: Path, *, measure: bool) -> torch.Tensor:
    from transformers import PrinterCallback

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrinterCallback, "on_log", lambda *_, **__: None)  # itself needs a terminal
        for name, value in (("ROWS", 4), ("EPOCHS", 1), ("LEARNING_RATE", 0.1)):
            patch.setattr(hosts, name, value)
        model = hosts.HOSTS[host](str(folder), measure=measure)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.timeout(60)
@faults(ROWS)
def test_the_training_ends_with_the_same_weights(case, expected, tmp_path, caplog):
    host, _, what = case.partition("-")
    before = expected(host)
    with BROKEN[what][0](tmp_path):
        after = weights(host, tmp_path, measure=True)
    assert torch.equal(after, before)
    ours = [record.getMessage() for record in caplog.records if record.name == "areal_callbacks"]
    assert len(ours) == len(set(ours))
    assert len(ours) <= 3, ours
    assert sys.exc_info() == (None, None, None)
