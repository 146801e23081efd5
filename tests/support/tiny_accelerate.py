"""A training loop as Accelerate's own examples have it, with the tiny Qwen3-MoE of the other tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from support.tiny_trainer import Recount, Sequences, fresh_accelerator, moe_config, moe_model
from torch import nn
from torch.utils.data import DataLoader

from areal_callbacks import get_flops_estimator

QUIET: dict[str, Any] = {"report": False}
OURS = ("train_perf/", "moe_balance/", "timeperf/")


class Rows(GeneralTracker):
    """A custom tracker that keeps its rows."""

    name = "rows"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, Any]]] = []

    @property
    def tracker(self) -> Any:
        return self.rows

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.rows.append((step, {**values, **kwargs}))


def make_accelerator(
    folder: Path | str | None = None, *, init_kwargs: dict[str, Any] | None = None, **options: Any
) -> Accelerator:
    """With trackers that are open already, if there are any."""
    fresh_accelerator()
    project = None if folder is None else str(folder)
    accelerator = Accelerator(cpu=True, project_dir=project, **options)
    if options.get("log_with"):
        accelerator.init_trackers("project", init_kwargs=init_kwargs or {})
    return accelerator


class Loop:
    """Trains what it prepares, and counts by itself what it trains on.

    Args:
        accelerator: where the model is prepared.
        model: the tiny MoE by default.
        optimizer: of the model's parameters.
        batch: rows in a batch, of 16.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        model: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        batch: int = 2,
        number: int = 16,
    ) -> None:
        plain = moe_model() if model is None else model
        self.accelerator = accelerator
        self.recount = Recount(plain)
        self.model, self.optimizer, self.loader = accelerator.prepare(
            plain, optimizer(plain.parameters(), lr=1e-2), DataLoader(Sequences(number), batch)
        )
        self.lengths: list[list[int]] = []
        self.steps = 0

    def run(self, log: Callable[[int, float], None] | None = None, *, epochs: int = 1) -> None:
        """One optimizer step an entry of ``lengths``; ``log`` is called after each."""
        pending: list[int] = []
        for _ in range(epochs):
            for batch in self.loader:
                pending += [sum(row) for row in batch["attention_mask"].tolist()]
                with self.accelerator.accumulate(self.model):
                    loss = self.model(**batch).loss
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if self.accelerator.sync_gradients:
                    self.steps += 1
                    self.lengths.append(pending)
                    pending = []
                    if log is not None:
                        log(self.steps, float(loss.detach()))

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.lengths))


def flops_of(lengths: Sequence[int]) -> float:
    estimate = get_flops_estimator(moe_config())
    assert estimate is not None
    return sum(estimate(length) for length in lengths)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def join(steps: Iterable[Sequence[int]]) -> list[int]:
    """The lengths of several steps as one list."""
    return list(itertools.chain.from_iterable(steps))


def ours(row: Mapping[str, float]) -> dict[str, float]:
    """What was measured, of a row."""
    return {name: value for name, value in row.items() if name.startswith(OURS)}


def column(rows: Iterable[Mapping[str, float]], name: str) -> list[float]:
    """A throughput metric, row by row."""
    return [row[f"train_perf/{name}"] for row in rows]
