"""What every host, writer and monitor must do. A new one passes by being named in a list:

=======  ================================================  ===================================================
Kind     Named in                                          Checked by
=======  ================================================  ===================================================
host     ``tests/support/hosts.py``                        ``integrations/test_contract.py`` (numbers, one and
                                                           two processes), ``safety/test_every_host.py``
                                                           (exceptions of ours, nothing stays behind)
writer   ``tests/writers/test_conformance.py``             :func:`check_writer`
tracker  a test class of its own that inherits             :mod:`support.tracker_conformance` (numbers and
         ``TrackerConformance``                            secrets as the tracker keeps them, its guest too)
monitor  ``tests/monitors/test_conformance.py``            :func:`check_monitor`
=======  ================================================  ===================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.reductions import over_ranks
from torch import nn

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.records import Records
from areal_callbacks.core.types import Export, Run
from areal_callbacks.safety.door import Observer
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.publisher import Publisher

EVENTS = ("open", "write", "close")


def exports() -> list[Export]:
    """Ordinary ones, and what a writer may not stumble over: no numbers, odd numbers, an old step, several stacks."""
    loads = ExpertLoads(
        (LayerLoads("", 0, torch.tensor([3, 1])), LayerLoads("encoder", 4, torch.tensor([2**33, 0, 1])))
    )
    odd = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "big": float(2**62), "a/b c": -0.0}
    return [
        Export(1, {"train_perf/tokens": 4.0}, host={"loss": 1.5}, time=1.0),
        Export(2, {"train_perf/tokens": 5.0}, loads, time=2.0),
        Export(3, {}, time=3.0),
        Export(4, odd, loads, {"lr": math.nan}, time=4.0),
        Export(4, {"train_perf/tokens": 6.0}, time=5.0),
        Export(2, {"train_perf/tokens": 7.0}, loads, time=6.0),
    ]


def check_writer(make: Callable[[], MetricWriter], folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Life of a writer alone and under a publisher: order, odd exports, exceptions at every event, repeated closing."""
    assert isinstance(make(), MetricWriter)
    _live(make(), folder / "alone")
    make().close()
    for event in EVENTS:
        _publish_with_failure(make, event, folder / event, caplog)


def _live(writer: MetricWriter, folder: Path) -> None:
    folder.mkdir(parents=True)
    writer.open(Run(folder, {"every": 1}, "run"))
    for export in exports():
        before = dict(export.metrics)
        writer.write(export)
        assert export.metrics.keys() == before.keys()
    writer.close()
    writer.close()


def _publish_with_failure(
    make: Callable[[], MetricWriter], event: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer raises at an event: one message, nothing raised, and the writer after it gets everything."""
    caplog.clear()
    folder.mkdir(parents=True)
    writer, after = make(), _Remembering()
    original = getattr(writer, event)

    def fail(*args: Any) -> None:
        original(*args)
        raise OSError(f"planted at {event}")

    setattr(writer, event, fail)
    publisher = Publisher([], run=Run(folder, {}, "run"), synchronous=[writer, after])
    for export in exports():
        publisher.publish(export)
    publisher.close()
    messages = [message for message in caplog.messages if "planted" in message]
    assert len(messages) == 1, (event, caplog.messages)
    assert type(writer).__name__ in messages[0]
    assert [export.step for export in after.exports] == [1, 2, 3, 4, 4, 2]


class _Remembering:
    def __init__(self) -> None:
        self.exports: list[Export] = []

    def open(self, run: Run) -> None: ...

    def write(self, export: Export) -> None:
        self.exports.append(export)

    def close(self) -> None: ...


@dataclass
class MonitorCase:
    """A monitor that is attached to a model, for :func:`check_monitor`.

    Attributes:
        monitor: with ``family``, ``failed``, ``collect`` and ``fail``.
        model: what it observes.
        train: one training step, with the same numbers each time.
        numbers: the metrics of reduced records that do not depend on time.
    """

    monitor: Any
    model: nn.Module
    train: Callable[[], None]
    numbers: Callable[[Records], dict[str, float]]


def check_monitor(make: Callable[[], MonitorCase]) -> None:
    """Collecting starts over, intervals and ranks pool, and a failure switches it off and takes its hooks away."""
    case = make()
    assert isinstance(case.monitor, Observer)
    case.train()
    one = case.monitor.collect().portable()
    assert case.numbers(one)
    assert not any(case.numbers(case.monitor.collect().portable()).values())
    for _ in range(2):
        case.train()
    two = case.monitor.collect().portable()
    assert case.numbers(one.merge(one)) == case.numbers(two)
    assert case.numbers(over_ranks(one, one)).keys() == case.numbers(one).keys()
    case.monitor.fail(RuntimeError("planted"))
    assert case.monitor.failed
    case.train()
    assert count_hooks(case.model, case.monitor) == 0


def count_hooks(model: nn.Module, observer: Observer) -> int:
    """Hooks of an observer's family that modules still carry."""
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    owners = [getattr(hook, "_observer", None) for hook in hooks]
    return sum(owner is not None and owner.family == observer.family for owner in owners)
