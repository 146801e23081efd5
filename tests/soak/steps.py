"""Very many steps of a tiny loop: what the process holds and what an export costs stay as they were."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from soak.readings import check_flat, read
from support.recount import written_loads, written_sum
from support.toy_moe import EXPERTS, TOP_K, VOCABULARY, WIDTH, TokenChoiceTopKRouter, batches

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.fsdp import track

EVERY = 20
LENGTHS = range(3, 9)
Step = Callable[[torch.Tensor], None]


def soak(folder: Path, steps: int) -> dict[str, float]:
    """Train with us; the first tenth of the steps also without, to compare.

    Raises:
        AssertionError: the weights differ after that tenth, tokens or assignments were lost, or memory, objects,
            threads, handles or the time of an export grow.
    """
    plain, seconds = _train_plain(steps // 10)
    begun = time.perf_counter()
    measured, exports = _train_measured(folder, steps)
    measured_seconds = time.perf_counter() - begun
    assert torch.equal(measured, plain)
    tokens = sum(batch.numel() for batch in _deal(steps))
    assert written_sum(folder) == tokens
    assert sum(written_loads(folder)["", 0]) == tokens * TOP_K
    assert written_sum(folder, "recorded") == steps // EVERY
    early, late = (
        float(np.percentile(part, 20)) for part in (exports[: len(exports) // 5], exports[-len(exports) // 5 :])
    )
    assert late <= 2 * early, (early, late)
    return {
        "steps": steps,
        "exports": len(exports),
        "export_ms_first_fifth": 1000 * early,
        "export_ms_last_fifth": 1000 * late,
        "ms_a_step_without_us": 1000 * seconds / (steps // 10),
        "ms_a_step": 1000 * measured_seconds / steps,
        "seconds": measured_seconds,
    }


class Routed(torch.nn.Module):
    """As little as has tokens and a router: a step takes less than a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.router = TokenChoiceTopKRouter(EXPERTS, TOP_K)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scores, _, _ = self.router(self.embedding(input_ids).view(-1, WIDTH))
        return scores.mean()


def _deal(steps: int) -> Iterator[torch.Tensor]:
    """Ragged batches, the same in every run."""
    pool = [batch for length in LENGTHS for batch in batches(4, length=length, seed=length)]
    return (pool[step % len(pool)] for step in range(steps))


def _make_training() -> tuple[torch.nn.Module, torch.optim.Optimizer, Step]:
    torch.manual_seed(0)
    model = Routed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(ids: torch.Tensor) -> None:
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def _weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _train_plain(steps: int) -> tuple[torch.Tensor, float]:
    model, _, step = _make_training()
    begun = time.perf_counter()
    for batch in _deal(steps):
        step(batch)
    return _weights(model), time.perf_counter() - begun


def _train_measured(folder: Path, steps: int) -> tuple[torch.Tensor, list[float]]:
    """The weights after a tenth of the steps, after which nothing may grow, and the processor time of each export."""
    model, optimizer, step = _make_training()
    exports: list[float] = []
    options = {"output_dir": folder, "report": False}
    with track(model, optimizer, flops_estimator=float, **options) as metrics:
        for number, batch in enumerate(_deal(steps), start=1):
            with metrics.step():
                step(batch)
            if number % EVERY == 0:
                stats_tracker.scalar(recorded=1.0)
                clock = time.process_time()
                metrics.export(number)
                exports.append(time.process_time() - clock)
            if number == steps // 10:
                weights, before = _weights(model), read()
        check_flat(before, read(), megabytes=4, objects=200)
    return weights, exports
