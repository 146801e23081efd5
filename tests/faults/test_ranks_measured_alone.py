"""Only one of two ranks is measured, or one begins much later: both end as without us, with the numbers of who is."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import odd_ranks
from support.distributed import Ranks
from support.fault_table import Fault, faults
from support.sessions import read_rows

pytestmark = pytest.mark.slow

TIMEOUT, LATE = 0.5, 2.0
MEASURED = {"first": (0,), "second": (1,), "late": (0, 1)}
BROKEN = {
    "first": "only the main process is measured",
    "second": "only the second process is measured",
    "late": "a rank begins later than the others would wait",
}
PROMISED = {
    "first": "both ranks end, with the same parameters; the rows are those of the measured rank",
    "late": "both ranks end, with the same parameters; the rows are those of both",
}


def expect_late(case: str) -> None:
    """The second rank prepares its data, say."""
    if case == "late" and dist.get_rank() == 1:
        time.sleep(LATE)


def parameters(model: Any) -> list[float]:
    return [float(value) for value in torch.cat([p.detach().flatten() for p in model.parameters()])[:200]]


def count_tokens(model: Any) -> Callable[[], int]:
    """Of this rank's training forwards, counted without us."""
    counts: list[int] = []

    def count(_module: Any, _args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            counts.append(int(kwargs["attention_mask"].sum()))

    model.register_forward_pre_hook(count, with_kwargs=True)
    return lambda: sum(counts)


def transformers(folder: str, case: str, is_measured: bool) -> tuple[list[float], int]:
    from support.tiny_trainer import make_trainer, moe_model
    from transformers import TrainerCallback

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    class Late(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            expect_late(case)

    model = moe_model()
    tokens = count_tokens(model)
    ours = [AReaLMetricsCallback(report=False, output_dir=folder)] if is_measured else []
    make_trainer(folder, model=model, callbacks=[Late(), *ours], logging_steps=2, max_steps=3).train()
    return parameters(model), tokens()


def lightning(folder: str, case: str, is_measured: bool) -> tuple[list[float], int]:
    from lightning.pytorch import Callback
    from support.tiny_lightning import Module, loader, trainer

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    class Late(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            expect_late(case)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    module = Module()
    tokens = count_tokens(module.model)
    ours = [AReaLMetricsCallback(report=False, output_dir=folder)] if is_measured else []
    host = trainer(Path(folder), Late(), *ours, devices=2, max_epochs=1, strategy="ddp", log_every_n_steps=2)
    host.fit(module, loader(8))
    return parameters(module), tokens()


def loop(host: str) -> Callable[[str, str, bool], tuple[list[float], int]]:
    """A loop over one of the other hosts, whose model has no tokens."""

    def train(folder: str, case: str, is_measured: bool) -> tuple[list[float], int]:
        made = odd_ranks.HOSTS[host](folder, is_measured, 2)
        expect_late(case)
        made.train()
        if made.ours is not None or host == "Accelerate":
            made.end()
        return made.parameters(), 0

    return train


TRAININGS = {"Hugging Face Trainer": transformers, "Lightning": lightning, **{h: loop(h) for h in odd_ranks.HOSTS}}


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Nobody waits long for a rank, nor for the process group, which the next case needs."""
    from areal_callbacks.core import rendezvous

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(dist, "destroy_process_group", lambda *_: None)
        patch.setattr(rendezvous, "TIMEOUT", TIMEOUT)
        yield


def train(_group: Any, host: str, case: str, folder: str, measure: bool) -> tuple[list[float], int]:
    with impatient():
        return TRAININGS[host](folder, case, measure and dist.get_rank() in MEASURED[case])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    own = Ranks(2)
    yield own
    own.close()


@faults(
    {
        f"{host}-{case}": Fault(host, BROKEN[case], PROMISED["late" if case == "late" else "first"])
        for host in TRAININGS
        for case in MEASURED
    }
)
def test_both_ranks_end_with_the_numbers_of_who_is_measured(case, ranks, tmp_path):
    host, _, measured = case.partition("-")
    expected = ranks.run(train, host, measured, str(tmp_path / "without"), False)
    assert ranks.run(train, host, measured, str(tmp_path / "with"), True) == expected
    (file,) = (tmp_path / "with").rglob("metrics.jsonl")
    rows = [row for _, row in read_rows(file.parent)]
    assert rows
    if expected[0][1]:
        tokens = sum(expected[rank][1] for rank in MEASURED[measured])
        assert sum(row["train_perf/tokens"] for row in rows) == tokens
