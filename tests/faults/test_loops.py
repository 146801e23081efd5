"""What people do to the objects of a loop: run a cell twice, fork, thread, copy, share, break off."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fault_table import Fault, fault, faults
from support.sessions import batch, open_session, read_rows, step
from support.tiny_trainer import moe_model
from torch import nn

from areal_callbacks import MetricsSession, stats_tracker
from areal_callbacks.integrations.fsdp import track

LOOP = "plain loops"


def tracked(folder: Path, model: nn.Module | None = None) -> tuple[MetricsSession, nn.Module, Any]:
    model = moe_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return track(model, optimizer, output_dir=str(folder), report=False), model, optimizer


def tokens(metrics: MetricsSession, model: nn.Module, optimizer: Any, *lengths: int) -> float | None:
    step(metrics, model, optimizer, *lengths)
    return metrics.export(1).metrics.get("train_perf/tokens")


@fault(Fault(LOOP, "a notebook cell tracks the same model again", "the first is closed with one message; one count"))
def test_a_second_track_of_a_model_closes_the_first(tmp_path, caplog):
    first, model, _ = tracked(tmp_path / "1")
    second, _, optimizer = tracked(tmp_path / "2", model)
    stats_tracker.scalar(reward=1.0)
    assert tokens(second, model, optimizer, 3, 5) == 8
    assert first.is_closed
    assert [message for message in caplog.messages if "tracked already" in message] == caplog.messages
    assert [row["reward"] for _, row in read_rows(tmp_path / "2")] == [1.0]
    second.close()


@fault(Fault(LOOP, "a notebook cell makes model and metrics again", "the new metrics get what is recorded"))
def test_metrics_that_nothing_refers_to_are_closed(tmp_path):
    metrics, model, optimizer = tracked(tmp_path / "1")
    metrics, model, optimizer = tracked(tmp_path / "2")
    stats_tracker.scalar(reward=2.0)
    assert metrics.export(1).metrics["reward"] == 2.0
    assert tokens(metrics, model, optimizer, 4) == 4
    metrics.close()


def _train_in_child(folder: str, results: Any) -> None:
    metrics, model, optimizer = tracked(Path(folder))
    stats_tracker.scalar(reward=3.0)
    step(metrics, model, optimizer, 6)
    results.put(metrics.export(1).metrics)
    metrics.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@fault(Fault(LOOP, "a forked child trains while its parent's metrics are open", "the child records and writes"))
def test_a_forked_child_that_trains_records(tmp_path):
    parent, model, optimizer = tracked(tmp_path / "parent")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_train_in_child, args=(str(tmp_path / "child"), results))
    child.start()
    metrics = results.get()
    child.join(30)
    assert (metrics["reward"], metrics["train_perf/tokens"]) == (3.0, 6)
    assert [step for step, _ in read_rows(tmp_path / "child")] == [1]
    assert tokens(parent, model, optimizer, 2) == 2
    parent.close()


@fault(Fault(LOOP, "two threads train two models", "each has its own numbers"))
def test_threads_measure_apart(tmp_path):
    found: dict[int, Any] = {}

    def train(number: int) -> None:
        metrics, model, optimizer = tracked(tmp_path / str(number))
        found[number] = [tokens(metrics, model, optimizer, number) for _ in range(3)]
        metrics.close()

    threads = [threading.Thread(target=train, args=(number,)) for number in (3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {3: [3] * 3, 7: [7] * 3}


@fault(Fault(LOOP, "metrics inside metrics, on two models", "each has its own numbers"))
def test_nested_sessions(tmp_path):
    outer, model, optimizer = tracked(tmp_path / "outer")
    inner, small, small_optimizer = tracked(tmp_path / "inner")
    assert tokens(inner, small, small_optimizer, 2) == 2
    inner.close()
    assert tokens(outer, model, optimizer, 5) == 5
    outer.close()


def _pickled(model: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(model))
    return loaded


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "deepcopy": (copy.deepcopy, "the model is deep-copied"),
    "pickle": (_pickled, "the model is pickled"),
    "save": (_saved, "the whole model is saved and loaded"),
    "share": (lambda model: model.share_memory(), "the model's memory is shared"),
}


@faults({name: Fault(LOOP, broken, "it works, and only the original counts") for name, (_, broken) in COPIES.items()})
def test_a_copy_is_not_measured(case, tmp_path):
    metrics, model, optimizer = tracked(tmp_path)
    copied = COPIES[case][0](model)
    if copied is not model:
        copied(**batch(9)).loss.backward()
    assert tokens(metrics, model, optimizer, 3) == 3
    metrics.close()


def _raise_inside(metrics: MetricsSession, model: nn.Module, optimizer: Any, kind: type[BaseException]) -> None:
    with metrics:
        step(metrics, model, optimizer, 3)
        raise kind("planted")


@faults(
    {
        "error": Fault(LOOP, "the loop raises", "its exception passes; no hook stays"),
        "interrupt": Fault(LOOP, "Ctrl-C in the loop", "it passes; no hook stays"),
        "exit": Fault(LOOP, "the loop calls `sys.exit`", "it passes; no hook stays"),
    }
)
def test_exceptions_pass(case, tmp_path):
    kind = {"error": ValueError, "interrupt": KeyboardInterrupt, "exit": SystemExit}[case]
    metrics, model, optimizer = tracked(tmp_path)
    with pytest.raises(kind, match="planted"):
        _raise_inside(metrics, model, optimizer, kind)
    assert metrics.is_closed
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


DAMAGED: dict[str, tuple[Any, str]] = {
    "missing": ({}, "the saved totals are missing"),
    "word": ({"totals": {"tokens": "12", "seconds": 1.0, "flops": None, "optimizer_steps": 1}}, "a total is a word"),
    "nan": ({"totals": {"tokens": 1, "seconds": float("nan"), "flops": None, "optimizer_steps": 1}}, "a total is NaN"),
    "list": ({"totals": [1, 2]}, "the totals are a list"),
}


@faults({name: Fault(LOOP, broken, "they restart, with one message") for name, (_, broken) in DAMAGED.items()})
def test_damaged_totals_restart(case, tmp_path, caplog):
    metrics, model, optimizer = tracked(tmp_path)
    metrics.load_state_dict(DAMAGED[case][0])
    step(metrics, model, optimizer, 4)
    assert metrics.export(1).metrics["train_perf/total_tokens"] == 4
    assert len(caplog.messages) == 1
    metrics.close()


@fault(Fault(LOOP, "`output_dir` is a URL (`s3://…`)", "files go to a local folder; one message"))
def test_a_remote_folder(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    metrics = track(nn.Linear(2, 2), output_dir="s3://bucket/run", report=False)
    metrics.tracker.scalar(value=1.0)
    metrics.export(1)
    metrics.close()
    assert len(list(tmp_path.glob("areal_metrics/*/metrics.jsonl"))) == 1
    assert not (tmp_path / "s3:").exists()
    assert [message for message in caplog.messages if "s3://" in message] == caplog.messages


@fault(Fault(LOOP, "tensors are made on another device than the model's by default", "the numbers are the same"))
def test_another_default_device(tmp_path):
    metrics, model, optimizer = tracked(tmp_path)
    inputs = batch(3, 5)
    with torch.device("meta"):
        model(**inputs).loss.backward()
        optimizer.step()
        stats_tracker.scalar(reward=1.0)
        export = metrics.export(1)
        metrics.close()
    assert (export.metrics["train_perf/tokens"], export.metrics["reward"]) == (8, 1.0)
    assert [int(loads.counts.sum()) for loads in export.expert_loads] == [2 * 5 * 2] * 2  # padding is routed, too


class TimeIsUp(Exception):  # noqa: N818
    """A time limit of the loop's own."""


@fault(Fault(LOOP, "a signal handler raises while our code runs", "its exception passes"))
def test_a_time_limit_that_ends_inside_our_code(tmp_path):
    def ring(*_: Any) -> None:
        raise TimeIsUp

    def count(**_: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, ring)
    model = moe_model()
    try:
        with track(model, output_dir=str(tmp_path), report=False, token_count_fn=count), pytest.raises(TimeIsUp):
            model(**batch(3))
    finally:
        signal.signal(signal.SIGALRM, before)


class Unprintable(Exception):  # noqa: N818
    """Of the user's, that cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("planted")

    __str__ = __repr__


@fault(Fault(LOOP, "a function of the user's raises what cannot be printed", "one message; the rest is measured"))
def test_an_exception_that_cannot_be_printed(tmp_path, caplog):
    def count(**_: Any) -> Any:
        raise Unprintable

    model = moe_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with track(model, optimizer, output_dir=str(tmp_path), report=False, token_count_fn=count) as metrics:
        step(metrics, model, optimizer, 3)
        export = metrics.export(1)
    assert export.metrics["train_perf/seconds"] > 0
    assert [message for message in caplog.messages if "<Unprintable>" in message] == caplog.messages[:1]


@fault(Fault(LOOP, "values of the host that are no number, or too large for one", "they are left out of the row"))
def test_host_values(tmp_path):
    with open_session(tmp_path) as session:
        session.tracker.scalar(value=1.0)
        export = session.export(1, {"loss": 0.5, "huge": 10**400, "word": "x", "meta": torch.ones((), device="meta")})
    assert export.host == {"loss": 0.5}


@fault(Fault(LOOP, "exports after the end", "nothing is written; one message at most"))
def test_exports_after_the_end(tmp_path, caplog):
    metrics, model, optimizer = tracked(tmp_path)
    assert tokens(metrics, model, optimizer, 3) == 3
    metrics.close()
    metrics.close()
    step(metrics, model, optimizer, 3)
    metrics.export(2)
    assert len(read_rows(tmp_path)) == 1
    assert len(caplog.messages) <= 1
