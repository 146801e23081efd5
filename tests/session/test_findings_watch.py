"""Findings of a run that goes on: told once, and nothing that fails costs the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.readback import messages

from areal_callbacks import MetricsConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.findings import Finding
from areal_callbacks.session.findings_watch import FindingsWatch
from areal_callbacks.session.outputs import make_publisher


class Clock:
    """A judgement takes two readings, between which ``cost`` seconds pass."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost = 0.0, cost

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


def stale(step: int, versions: float = 20.0) -> Export:
    return Export(step, {"ppo_actor/update/version_stats/sample_staleness_theta_avg": versions})


def test_a_finding_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Finding] = []

    def fail(_: Finding) -> None:
        raise OSError("nobody listens")

    watch = FindingsWatch([fail, told.append], clock=Clock(0.0))
    for step in range(1, 30):
        watch.write(stale(step))
    watch.close()
    assert [(one.rule, one.severity, one.found_step) for one in told] == [("staleness", "severe", 3)]
    assert watch.found[0].last_step == 29
    assert [line for line in messages(caplog) if "nobody listens" in line]


def test_judging_takes_a_hundredth_of_the_time() -> None:
    told: list[Finding] = []
    clock = Clock(1.0)
    watch = FindingsWatch([told.append], clock=clock)
    for step in range(1, 60):
        watch.write(stale(step))
    assert told == []  # the first judgement came with the first export, the next one comes 100 seconds later
    watch.close()
    assert [one.rule for one in told] == ["staleness"]


def test_a_run_tells_its_owner_and_ends_with_its_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    publisher = make_publisher(Run(tmp_path), MetricsConfig(report=False, on_finding=told.append))
    for step in range(1, 30):
        publisher.publish(stale(step))
    publisher.close()
    assert [one.rule for one in told] == ["staleness"]
    assert (
        capsys.readouterr()
        .out.rstrip()
        .endswith("Findings\n  severe: tokens are 20.0 versions old on average since step 1")
    )


def test_no_console_no_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publisher = make_publisher(Run(tmp_path), MetricsConfig(report=False, console="off"))
    publisher.publish(stale(1))
    publisher.close()
    assert capsys.readouterr().out == ""
