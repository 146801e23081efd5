"""What a training step costs with the metrics that hosts have of their own, and with ours.

    python benchmarks/bench_hosts.py [rounds]

A Qwen3-MoE of four layers, trained by Transformers, TRL and Lightning; rounds are interleaved, and the median step of
each training counts, in CPU time of the training thread. TRL's own metrics are those of SFTTrainer; its step also pads
and computes entropies. One process.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from bench_hooks import BATCH, LENGTH, WARM_UP, Rows, StepTimes, make_model, train
from tabulate import tabulate
from torch.utils.data import DataLoader

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

LAYERS = 4


def transformers_calls() -> dict[str, Callable[[], float]]:
    """Name → the median step of one training."""
    return {
        "Trainer": lambda: train(LAYERS, [])[0],
        "+ include_num_input_tokens_seen": lambda: train(LAYERS, [], include_num_input_tokens_seen="non_padding")[0],
        "+ ours": lambda: train(LAYERS, [AReaLMetricsCallback(report=False)])[0],
    }


def trl_calls() -> dict[str, Callable[[], float]]:
    from trl import SFTConfig, SFTTrainer

    def sft(*callbacks: Any) -> float:
        from datasets import Dataset

        rows = Rows()
        data = Dataset.from_list([{"input_ids": rows[index]["input_ids"].tolist()} for index in range(len(rows))])
        times = StepTimes()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            args = SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=BATCH,
                num_train_epochs=1,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                max_length=LENGTH,
                gradient_checkpointing=False,
                dataloader_pin_memory=False,
            )
            model, tokenizer = make_model(LAYERS), _tokenizer()
            SFTTrainer(
                model, args, train_dataset=data, processing_class=tokenizer, callbacks=[times, *callbacks]
            ).train()
        return times.averages()[0]

    return {"SFTTrainer with TRL's metrics": sft, "+ ours ": lambda: sft(AReaLMetricsCallback(report=False))}


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(256)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), pad_token="w0", eos_token="w1"
    )


def lightning_calls() -> dict[str, Callable[[], float]]:
    from lightning.pytorch import Callback, LightningModule, Trainer
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

    class Times(Callback):
        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_train_batch_start(self, *_: Any) -> None:
            self.marks.append(time.thread_time())

    def fit(make: Callable[[], Any] | None = None, logged: int = 0) -> float:
        times = Times()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            trainer = Trainer(
                default_root_dir=folder,
                accelerator="cpu",
                devices=1,
                max_epochs=1,
                logger=CSVLogger(folder),
                log_every_n_steps=10,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[times, *([] if make is None else [make()])],
            )
            trainer.fit(Module(logged), DataLoader(Rows(), batch_size=BATCH))
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(times.marks[WARM_UP:]))

    def throughput() -> Any:
        return ThroughputMonitor(
            batch_size_fn=lambda batch: len(batch["input_ids"]), length_fn=lambda batch: batch["input_ids"].numel()
        )

    return {
        "Lightning's Trainer": fit,
        "+ ThroughputMonitor": lambda: fit(throughput),
        "+ self.log(sync_dist=True) of 20 numbers": lambda: fit(logged=20),
        "+ ours  ": lambda: fit(lambda: Ours(report=False)),
    }


def measure(calls: dict[str, Callable[[], float]], rounds: int) -> list[tuple[Any, ...]]:
    """A row for each; the first is what the others are compared with, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(call())
    first = next(iter(seconds.values()))
    rows = []
    for name, each in seconds.items():
        ratios = [own / plain for own, plain in zip(each, first)]
        added = statistics.median(own - plain for own, plain in zip(each, first))
        median, least = statistics.median(each) * 1e3, min(each) * 1e3
        rows.append((name.strip(), median, least, statistics.median(ratios), added * 1e6))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    rounds = int(sys.argv[1]) if sys.argv[1:] else 7
    rows = []
    for make_calls in (transformers_calls, trl_calls, lightning_calls):
        try:
            rows += measure(make_calls(), rounds)
        except ImportError as error:
            print(f"left out: {error}")
    headers = ("host", "a step, median ms", "minimum ms", "with / without", "added, µs")
    print(tabulate(rows, headers, tablefmt="github", floatfmt=("", ".2f", ".2f", ".3f", ".0f")))


if __name__ == "__main__":
    main()
