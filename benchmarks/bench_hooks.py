"""What the Trainer's callback costs a training step, counted inside its hooks and end to end.

    python benchmarks/bench_hooks.py

Qwen3-MoE models of two and four layers, with steps of about 10 ms. In every round the same steps are trained three
times: without the callback, with it, and with it and a stopwatch around everything that it is called for (module hooks,
callback events, optimizer hooks). Medians per step, of interleaved rounds; steps in CPU time of the training thread,
which other work on the machine disturbs less than wall time. Exports are counted apart: they happen at logging events,
here every tenth step. One process, one thread; figures of one machine.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tabulate import tabulate
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    PrinterCallback,
    Qwen3MoeConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from areal_callbacks.integrations.transformers import AReaLMetricsCallback
from areal_callbacks.safety.hooks import Hook
from areal_callbacks.session import MetricsSession

ROUNDS, STEPS, WARM_UP, LOGGING_STEPS = 15, 60, 10, 10
WIDTH, LENGTH, BATCH = 32, 32, 2


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + LENGTH) % 256
        mask = (torch.arange(LENGTH) < LENGTH - index % 8).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}


class Stopwatch:
    """Adds up the time inside functions, outermost calls only, one entry a step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.exports = 0.0
        self._inside = False

    def around(self, function: Callable[..., Any], *, export: bool = False) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            start = time.perf_counter()  # reading the thread's own clock takes longer than some of what is timed
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.perf_counter() - start
                self._inside = False
                if export:
                    self.exports += elapsed
                else:
                    self.seconds += elapsed

        return timed

    @contextmanager
    def installed(self) -> Iterator[None]:
        places = [
            (Hook, "__call__", False),
            (AReaLMetricsCallback, "on_step_begin", False),
            (MetricsSession, "end", False),
            (MetricsSession, "optimizer_begin", False),
            (MetricsSession, "optimizer_end", False),
            (MetricsSession, "reduce", True),
            (MetricsSession, "emit", True),
        ]
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
        for owner, name, export in places:
            setattr(owner, name, self.around(getattr(owner, name), export=export))
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)


class StepTimes(TrainerCallback):
    """Time from one step's begin to the next, and what the stopwatch gained meanwhile."""

    def __init__(self, stopwatch: Stopwatch | None = None) -> None:
        self.marks: list[tuple[float, float]] = []
        self._stopwatch = stopwatch

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.marks.append((time.thread_time(), 0.0 if self._stopwatch is None else self._stopwatch.seconds))

    def averages(self) -> tuple[float, float, float]:
        """The median step, and median and mean of what the stopwatch gained: some steps count for many."""
        marks = self.marks[WARM_UP:]
        pairs = list(itertools.pairwise(marks))
        steps = statistics.median(later[0] - earlier[0] for earlier, later in pairs)
        gained = [later[1] - earlier[1] for earlier, later in pairs]
        return steps, statistics.median(gained), statistics.mean(gained)


def make_model(layers: int) -> Any:
    """Small, so that a step takes about 10 ms."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        moe_intermediate_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        vocab_size=256,
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(config)


def train(
    layers: int, callbacks: list[TrainerCallback], stopwatch: Stopwatch | None = None, **options: Any
) -> tuple[float, float, float]:
    """The median step, and the median and mean time in our hooks, in seconds, of one training."""
    times = StepTimes(stopwatch)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            logging_steps=LOGGING_STEPS,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **options,
        )
        trainer = Trainer(model=make_model(layers), args=args, train_dataset=Rows(), callbacks=[times, *callbacks])
        trainer.remove_callback(PrinterCallback)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
    return times.averages()


def measure(layers: int) -> list[Any]:
    """The row of one model."""
    plain, measured, inside, exports = [], [], [], []
    for _ in range(ROUNDS):
        plain.append(train(layers, [])[0])
        measured.append(train(layers, [AReaLMetricsCallback(report=False)])[0])
        stopwatch = Stopwatch()
        with stopwatch.installed():
            inside.append(train(layers, [AReaLMetricsCallback(report=False)], stopwatch)[1:])
        exports.append(stopwatch.exports / (STEPS // LOGGING_STEPS))
    step, hooks = statistics.median(plain), statistics.median(median for median, _ in inside)
    return [
        layers,
        f"{step * 1e3:.2f}",
        f"{hooks * 1e6:.0f}",
        f"{statistics.median(mean for _, mean in inside) * 1e6:.0f}",
        f"{hooks / step:.1%}",
        f"{statistics.median(ours / bare for ours, bare in zip(measured, plain)):.3f}",
        f"{statistics.median(exports) * 1e3:.2f}",
    ]


def main() -> None:
    torch.set_num_threads(1)
    rows = [measure(layers) for layers in (2, 4)]
    headers = [
        "layers",
        "step, ms",
        "in our hooks, us",
        "their mean, us",
        "of the step",
        "with / without",
        "an export, ms",
    ]
    print(tabulate(rows, headers=headers, tablefmt="github"))
    print(f"\na further router: {(float(rows[1][2]) - float(rows[0][2])) / 2:.0f} us")


if __name__ == "__main__":
    main()
