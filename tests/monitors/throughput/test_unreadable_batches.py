"""A batch that cannot be read costs the tokens of its interval, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import batch, open_session, step
from support.tiny_trainer import moe_model

from areal_callbacks.monitors.throughput.lengths import Lengths


class Odd(torch.Tensor):
    """A mask that raises when it is looked at."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not loaded")


def count_odd_mask(session: Any) -> None:
    given = batch(3, 4)
    session.count_inputs({**given, "attention_mask": given["attention_mask"].as_subclass(Odd)})


def count_words(session: Any) -> None:
    session.count_sequences(["three"])


def count_meta(session: Any) -> None:
    session.count_sequences(Lengths(torch.ones(2, dtype=torch.long, device="meta"), 8))


@pytest.mark.parametrize("spoil", [count_odd_mask, count_words, count_meta])
def test_one_bad_batch_costs_its_interval(spoil: Callable[[Any], None], tmp_path: Path, caplog: Any) -> None:
    model = moe_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with open_session(tmp_path).attach(model, optimizer) as session:
        session.count_sequences([5, 6])
        step(session, model, optimizer, 5, 6)
        spoil(session)
        first = session.export(1).metrics
        session.count_sequences([7, 2])
        step(session, model, optimizer, 7, 2)
        second = session.export(2).metrics
    assert "train_perf/tokens" not in first
    assert first["moe_balance/max_over_ideal_max"] > 0
    assert second["train_perf/tokens"] == 9
    assert len([message for message in caplog.messages if "read" in message or "exported" in message]) >= 1


def test_a_count_function_that_raises_once_costs_one_interval(tmp_path: Path) -> None:
    calls = []

    def count(**_: Any) -> list[int]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("cold cache")
        return [4, 4]

    model = moe_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with open_session(tmp_path, token_count_fn=count).attach(model, optimizer) as session:
        step(session, model, optimizer, 5, 6)
        first = session.export(1).metrics
        step(session, model, optimizer, 5, 6)
        second = session.export(2).metrics
    assert "train_perf/tokens" not in first
    assert first["train_perf/optimizer_steps"] == 1
    assert second["train_perf/tokens"] == 8


def test_gradients_of_single_samples_cost_the_tokens(tmp_path: Path, caplog: Any) -> None:
    """Inside of ``torch.vmap`` a batch of three looks like one row."""
    model, ids = Words(), torch.randint(5, 60, (3, 8))

    def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> Any:
        return torch.func.functional_call(model, parameters, (row[None],)).sum()

    with open_session(tmp_path).attach(model) as session:
        with session.step():
            torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(model.named_parameters()), ids)
        first = session.export(1).metrics
        with session.step():
            model(ids).sum().backward()
        second = session.export(2).metrics
    assert "train_perf/tokens" not in first
    assert second["train_perf/tokens"] == ids.numel()
    assert sum("vmap" in message for message in caplog.messages) == 1


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.head(self.words(input_ids))
