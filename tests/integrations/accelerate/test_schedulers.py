"""Schedulers of the learning rate that are made after ``prepare``: they wrap the step that is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.distributed import Ranks
from support.readback import messages
from support.tiny_accelerate import QUIET, column, make_accelerator
from support.tiny_trainer import metric_records
from support.tiny_words import Words, batches, weights_of
from torch.optim.lr_scheduler import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from areal_callbacks.integrations.accelerate import enable

SCHEDULERS: dict[str, Callable[[Any], LRScheduler]] = {
    "StepLR": lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "OneCycleLR": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=8),
    "SequentialLR": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer, 0.5, 2), ExponentialLR(optimizer, 0.9)], [2]
    ),
    "ReduceLROnPlateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
}


def train(folder: Path | str, name: str, *, of: str, measure: bool = True) -> tuple[list[float], list[float]]:
    """The weights, and the learning rate after every step."""
    accelerator = make_accelerator(folder)
    if measure:
        enable(accelerator, **QUIET)
    plain = Words()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    scheduler = SCHEDULERS[name](optimizer.optimizer if of == "inner" else optimizer)
    if of == "prepared":
        scheduler = accelerator.prepare(scheduler)
    rates = []
    for batch in batches():
        loss = model(**batch)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step(*[loss.item()] * (name == "ReduceLROnPlateau"))
        optimizer.zero_grad()
        rates.append(optimizer.param_groups[0]["lr"])
    accelerator.end_training()
    return weights_of(plain), rates


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("of", ["prepared", "optimizer", "inner"])
def test_the_rates_are_those_without_us_and_every_step_is_counted(name, of, tmp_path, caplog):
    expected = train(tmp_path / "without", name, of=of, measure=False)
    assert train(tmp_path / "with", name, of=of) == expected
    rows = [record.metrics for record in metric_records(tmp_path / "with")]
    assert column(rows, "optimizer_steps") == [1, 1, 1, 1]
    assert all(row["timeperf/optimizer_step"] > 0 for row in rows)
    assert messages(caplog) == []


def train_on_ranks(_group: Any, folder: str) -> list[Any]:
    import contextlib

    import torch.distributed as dist

    with contextlib.ExitStack() as stack:  # end_training() destroys the group, which the next test needs
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(dist, "destroy_process_group", lambda *_: None)
        return [train(f"{folder}/{measure}", "StepLR", of="prepared", measure=measure) for measure in (False, True)]


@pytest.mark.slow
def test_two_processes(two_ranks: Ranks, tmp_path: Path) -> None:
    """A prepared scheduler steps once for every process."""
    for expected, measured in two_ranks.run(train_on_ranks, str(tmp_path)):
        assert measured == expected
        assert measured[1] == [0.1 * 0.25**step for step in range(1, 5)]
    rows = [record.metrics for record in metric_records(tmp_path / "True")]
    assert column(rows, "optimizer_steps") == [0, 1, 1, 2]  # each counts after the next backward, or at the end
