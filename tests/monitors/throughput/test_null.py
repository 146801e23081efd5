"""What stands for the monitor takes the same events and does nothing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import open_session
from support.throughput_ranks import forward_call

from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.throughput.null import NullThroughput

EVENTS = [name for name, value in vars(NullThroughput).items() if callable(value) and not name.startswith("_")]


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_takes_what_the_monitors_does(name: str) -> None:
    parameters = [inspect.signature(getattr(owner, name)).parameters for owner in (NullThroughput, ThroughputMonitor)]
    assert list(parameters[0]) == list(parameters[1])


def test_every_event_may_be_called_and_changes_nothing() -> None:
    throughput: Any = NullThroughput()
    throughput.begin()
    assert not throughput.running
    throughput.on_consumed("text", forward_call())
    throughput.on_outermost(forward_call(), has_models=False)
    throughput.count([3])
    throughput.count_inputs({})
    throughput.optimizer_begin()
    throughput.optimizer_end()
    throughput.load_state_dict({"tokens": 5})
    assert throughput.state_dict() is None


def test_a_session_without_throughput_takes_every_event(tmp_path: Path) -> None:
    with open_session(tmp_path, throughput=False) as session:
        with session.step(), session.excluded("rollout"):
            session.count_inputs({"input_ids": torch.ones(1, 2, dtype=torch.long)})
            session.count_sequences([3])
        session.begin()
        session.expect_optimizer(may_skip=True)
        session.optimizer_begin()
        session.optimizer_end()
        session.optimizer_skipped()
        session.may_end()
        session.end()
        assert list(session.export(1).metrics) == ["timeperf/rollout"]
