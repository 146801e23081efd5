"""What a training step costs with the metrics that hosts have of their own, and with ours.

    python benchmarks/bench_hosts.py [trainings]

A Qwen3-MoE of four layers, trained by Transformers, TRL and Lightning. The contestants train in one process, each in a
thread of its own, and make their steps in turn: whatever else the machine does meanwhile meets all of them. A ratio is
that of two steps that follow each other, in CPU time of their threads, and the median of all of them counts. Steps that
log, which are every tenth, are among them. TRL's own metrics are those of SFTTrainer; its step also pads and computes
entropies.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from bench_hooks import BATCH, LENGTH, WARM_UP, Rows, make_model
from tabulate import tabulate
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

LAYERS = 4

Train: TypeAlias = Callable[[Callable[[], None]], None]
"""One training, which calls what it is given where each of its steps begins."""


class Turns:
    """Lets trainings in threads make their steps one after the other, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: list[threading.Semaphore] = []
        self._threads: list[threading.Thread] = []

    def add(self, train: Train, marks: list[float]) -> None:
        """A training that notes the CPU time of its thread at the beginning of each step."""
        mine = threading.Semaphore(0)
        self._waiting.append(mine)

        def begin_step() -> None:
            marks.append(time.thread_time())
            self._next_after(mine).release()
            mine.acquire()

        def run() -> None:
            mine.acquire()
            try:
                train(begin_step)
            finally:
                following = self._next_after(mine)
                self._waiting.remove(mine)
                following.release()

        self._threads.append(threading.Thread(target=run))

    def run(self) -> None:
        """All of them, to their end."""
        for thread in self._threads:
            thread.start()
        self._waiting[0].release()
        for thread in self._threads:
            thread.join()

    def _next_after(self, mine: threading.Semaphore) -> threading.Semaphore:
        return self._waiting[(self._waiting.index(mine) + 1) % len(self._waiting)]


class Beginnings(TrainerCallback):
    """Calls a function where each step of a Hugging Face Trainer begins."""

    def __init__(self, begin_step: Callable[[], None]) -> None:
        self._begin_step = begin_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin_step()


def options_of(folder: str) -> dict[str, Any]:
    """What both kinds of Trainer are told."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def transformers_calls() -> dict[str, Train]:
    def train(begin_step: Callable[[], None], *callbacks: Any, **options: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(**options_of(folder), **options)
            callbacks = (Beginnings(begin_step), *callbacks)
            trainer = Trainer(model=make_model(LAYERS), args=args, train_dataset=Rows(), callbacks=[*callbacks])
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    return {
        "Trainer": train,
        "+ include_num_input_tokens_seen": lambda begin: train(begin, include_num_input_tokens_seen="non_padding"),
        "+ ours": lambda begin: train(begin, AReaLMetricsCallback(report=False)),
    }


def trl_calls() -> dict[str, Train]:
    from trl import SFTConfig, SFTTrainer

    def sft(begin_step: Callable[[], None], *callbacks: Any) -> None:
        from datasets import Dataset

        rows = Rows()
        data = Dataset.from_list([{"input_ids": rows[index]["input_ids"].tolist()} for index in range(len(rows))])
        with tempfile.TemporaryDirectory() as folder:
            args = SFTConfig(**options_of(folder), bf16=False, max_length=LENGTH, gradient_checkpointing=False)
            callbacks = (Beginnings(begin_step), *callbacks)
            trainer = SFTTrainer(
                make_model(LAYERS), args, train_dataset=data, processing_class=_tokenizer(), callbacks=[*callbacks]
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    return {
        "SFTTrainer with TRL's metrics": sft,
        "+ ours ": lambda begin: sft(begin, AReaLMetricsCallback(report=False)),
    }


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(256)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), pad_token="w0", eos_token="w1"
    )


def lightning_calls() -> dict[str, Train]:
    from lightning.pytorch import Callback, LightningModule
    from lightning.pytorch import Trainer as LightningTrainer
    from lightning.pytorch.callbacks import ThroughputMonitor
    from lightning.pytorch.loggers import CSVLogger

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback as Ours

    class Module(LightningModule):
        def __init__(self, logged: int) -> None:
            super().__init__()
            self.model, self.logged = make_model(LAYERS), logged

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.model(**batch).loss
            for number in range(self.logged):
                self.log(f"metric_{number}", loss.detach() + number, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    class LightningBeginnings(Callback):
        def __init__(self, begin_step: Callable[[], None]) -> None:
            self._begin_step = begin_step

        def on_train_batch_start(self, *_: Any) -> None:
            self._begin_step()

    def fit(begin_step: Callable[[], None], *callbacks: Any, logged: int = 0) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer = LightningTrainer(
                default_root_dir=folder,
                accelerator="cpu",
                devices=1,
                max_epochs=1,
                logger=CSVLogger(folder),
                log_every_n_steps=10,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[LightningBeginnings(begin_step), *callbacks],
            )
            trainer.fit(Module(logged), DataLoader(Rows(), batch_size=BATCH))

    def throughput() -> Any:
        return ThroughputMonitor(
            batch_size_fn=lambda batch: len(batch["input_ids"]), length_fn=lambda batch: batch["input_ids"].numel()
        )

    return {
        "Lightning's Trainer": fit,
        "+ ThroughputMonitor": lambda begin: fit(begin, throughput()),
        "+ self.log(sync_dist=True) of 20 numbers": lambda begin: fit(begin, logged=20),
        "+ ours  ": lambda begin: fit(begin, Ours(report=False)),
    }


def measure(calls: dict[str, Train], trainings: int) -> list[tuple[Any, ...]]:
    """A row for each; the first is what the others are compared with, step by step."""
    steps: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(trainings):
        turns, marks = Turns(), {name: list[float]() for name in names}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turns.add(calls[name], marks[name])
        with contextlib.redirect_stdout(io.StringIO()):
            turns.run()
        for name in names:
            steps[name] += [end - begin for begin, end in itertools.pairwise(marks[name][WARM_UP:])]
    plain = steps[names[0]]
    rows = []
    for name, each in steps.items():
        ratio = statistics.median(own / other for own, other in zip(each, plain))
        added = statistics.median(own - other for own, other in zip(each, plain))
        rows.append((name.strip(), statistics.median(each) * 1e3, min(each) * 1e3, ratio, added * 1e6))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    trainings = int(sys.argv[1]) if sys.argv[1:] else 8
    rows = []
    for make_calls in (transformers_calls, trl_calls, lightning_calls):
        try:
            rows += measure(make_calls(), trainings)
        except ImportError as error:
            print(f"left out: {error}")
    headers = ("host", "a step, median ms", "minimum ms", "with / without", "added, µs")
    print(tabulate(rows, headers, tablefmt="github", floatfmt=("", ".2f", ".2f", ".3f", ".0f")))


if __name__ == "__main__":
    main()
