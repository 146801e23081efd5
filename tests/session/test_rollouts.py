"""Generation inside a training step is taken out, once, and recorded."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from support.sessions import batch, open_session
from support.wraps import find_wraps
from torch import nn

SECONDS = 0.3


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)

    def forward(self, input_ids: Any) -> Any:
        return self.head(self.words(input_ids))

    def generate(self, input_ids: Any) -> Any:
        time.sleep(SECONDS)
        return input_ids


class Outer(nn.Module):
    """An adapter: its ``generate`` calls the one inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, input_ids: Any) -> Any:
        return self.inner(input_ids)

    def generate(self, input_ids: Any) -> Any:
        return self.inner.generate(input_ids)


def test_generation_in_a_step_is_a_rollout(tmp_path: Path) -> None:
    model, ids = Outer(), batch(4, 2)["input_ids"]
    plain = model.generate
    with open_session(tmp_path) as session:
        session.attach(model)
        with session.step():
            for policy in (model, model.inner):
                policy.generate(ids)
            model(ids).sum().backward()
        metrics = session.export(1).metrics
        assert metrics["timeperf/rollout"] + SECONDS >= 2 * SECONDS  # a mean of two
        assert metrics["train_perf/seconds"] < SECONDS
        assert metrics["train_perf/tokens"] == 8
        model.generate(ids)  # outside a step
        assert "timeperf/rollout" not in session.export(2).metrics
    assert model.generate == plain
    assert "generate" not in find_wraps(model.inner)


def test_a_generation_that_raises_leaves_the_step_open(tmp_path: Path) -> None:
    model, ids = Outer(), batch(4, 2)["input_ids"]
    model.inner.generate = None  # type: ignore[assignment]
    with open_session(tmp_path) as session:
        session.attach(model)
        with session.step():
            model(ids).sum().backward()
            with contextlib.suppress(TypeError):
                model.generate(ids)
            time.sleep(SECONDS)
        assert session.export(1).metrics["train_perf/seconds"] >= SECONDS
