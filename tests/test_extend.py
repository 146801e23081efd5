"""The code of docs/extend.md as it stands there, and what comes of it."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.finding_runs import diagnose
from torch import nn

from areal_callbacks import MetricsSession, get_flops_estimator, stats_tracker

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text()
WIDTH, EXPERTS, TOP_K = 8, 4, 2


@pytest.fixture(scope="module")
def page() -> Any:
    """A module of all blocks in their order."""
    module = ModuleType("extended")
    sys.modules["extended"] = module  # where a formula is found by its name
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "extend.md", "exec"), vars(module))
    return module


def test_metrics(page: Any, tmp_path: Path) -> None:
    values, mask = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, False, True])
    with MetricsSession(output_dir=tmp_path, report=False) as session:
        page.record_entropies(values, mask)
        page.record_rms(values, mask)
        page.record_rms(values, ~mask)
        metrics = session.export(1).metrics
    assert metrics["policy/n_tokens"] == 2
    assert [metrics[f"policy/entropy/{kind}"] for kind in ("avg", "min", "max")] == [2.5, 1.0, 4.0]
    assert metrics["policy/loss/rms"] == pytest.approx(math.sqrt((1 + 4 + 16) / 3))


class Mixture(nn.Module):
    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.embed, self.gate, self.chosen = nn.Embedding(10, WIDTH), gate, []

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output = self.gate(self.embed(input_ids))
        self.chosen.append(output["chosen"])
        return output["logits"].sum()


def test_a_router(page: Any, tmp_path: Path) -> None:
    model = Mixture(page.NoisyGate(WIDTH, EXPERTS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with MetricsSession(output_dir=tmp_path, report=False) as session:
        session.attach(model, optimizer)
        with session.step():
            model(torch.randint(10, (3, 5))).backward()
            optimizer.step()
        loads = session.export(1).expert_loads
    assert loads is not None
    (layer,) = loads.layers
    wanted = torch.bincount(torch.cat(model.chosen).flatten(), minlength=EXPERTS)
    assert torch.equal(layer.counts, wanted)


@pytest.mark.usefixtures("page")
def test_flops() -> None:
    config = SimpleNamespace(
        model_type="two_part", hidden_size=16, intermediate_size=32, vocab_size=50, num_hidden_layers=3
    )
    estimate = get_flops_estimator(config)
    assert estimate is not None
    for length in (1, 7, 100):
        hidden, kv = 16, 8
        weights = 3 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * 32) + hidden * 50
        attention = 3 * 2 * hidden * length * (length + 1) / 2
        assert estimate(length) == pytest.approx(6 * (weights * length + attention))


def test_a_writer(page: Any, tmp_path: Path) -> None:
    with MetricsSession(output_dir=tmp_path, report=False, guests=[page.CsvWriter()]) as session:
        for step in (1, 2):
            stats_tracker.scalar(reward=step / 2)
            session.export(step)
    with (tmp_path / "metrics.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0}]


@pytest.mark.parametrize(("rewards", "steps"), [([1.0] * 5 + [-1.0] * 12, [80]), ([1.0, -1.0] * 10, [])])
def test_a_finding(page: Any, rewards: list[float], steps: list[int]) -> None:
    assert page.RULES["reward_below_zero"] is page.judge_reward
    assert [each.step for each in diagnose(reward=rewards) if each.rule == "reward_below_zero"] == steps


@pytest.fixture(scope="module", autouse=True)
def _without_the_rule_afterwards(page: Any) -> Iterator[None]:
    yield
    del page.RULES["reward_below_zero"]
