"""Under the trainers, one of two ranks does something alone that the trainer does not need from the other."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.distributed import Ranks
from support.fault_table import Fault, faults

pytestmark = pytest.mark.slow

HF = {
    "evaluates": "a callback runs the bare model on one rank",
    "records": "a callback records new keys on one rank",
    "raises_at_the_end": "a callback's `on_train_end` raises on one rank",
}
LIGHTNING = {
    "refuses": "a rank refuses optimizer steps in manual optimisation",
    "stops": "a rank sets `should_stop` in its last batch",
    "logs": "a rank logs alone",
    "raises_at_the_end": "a callback's `on_train_end` raises on one rank",
}
PROMISED = "both ranks end, with the same parameters"
ROWS = {f"transformers-{case}": Fault("Hugging Face Trainer", broken, PROMISED) for case, broken in HF.items()}
ROWS |= {f"lightning-{case}": Fault("Lightning", broken, PROMISED) for case, broken in LIGHTNING.items()}


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    from areal_callbacks.core import rendezvous

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(rendezvous, "TIMEOUT", 0.3)
        yield


def parameters(model: Any) -> list[float]:
    return [float(value) for value in torch.cat([p.detach().flatten() for p in model.parameters()])[:200]]


def transformers(_group: Any, folder: str, case: str, measure: bool) -> list[float]:
    from support.tiny_trainer import make_trainer, moe_model
    from transformers import TrainerCallback

    from areal_callbacks import stats_tracker
    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    class Odd(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step != 1:
                return
            if case == "evaluates" and dist.get_rank() == 1:
                with torch.no_grad():
                    kwargs["model"](torch.ones(1, 3, dtype=torch.long))
            if case == "records" and dist.get_rank() == 1:
                stats_tracker.scalar(only=1.0, bad=torch.ones((), device="meta"))

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if case == "raises_at_the_end" and dist.get_rank() == 1:
                raise RuntimeError("planted")

    ours = [AReaLMetricsCallback(report=False)] if measure else []
    model = moe_model()
    trainer = make_trainer(folder, model=model, callbacks=[Odd(), *ours], logging_steps=2, max_steps=3)  # fmt: skip
    with _impatient(), contextlib.suppress(RuntimeError):
        trainer.train()
    return parameters(model)


def lightning(_group: Any, folder: str, case: str, measure: bool) -> list[float]:
    from lightning.pytorch import Callback
    from support.tiny_lightning import Module, loader, trainer

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    rank = dist.get_rank()

    class Odd(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if case == "stops" and rank == 0 and batch_idx + 1 == trainer.num_training_batches:
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, module: Any) -> None:
            if case == "raises_at_the_end" and rank == 1:
                raise RuntimeError("planted")

    class Refusing(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.optimizers().zero_grad()
            self.manual_backward(self.model(**batch).loss)
            if rank == 0 or batch_idx:
                self.optimizers().step()

    class Logging(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if rank == 0:
                self.log("only", 1.0, rank_zero_only=True)
            return super().training_step(batch, batch_idx)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    kind = {"refuses": Refusing, "logs": Logging}.get(case, Module)
    ours = [AReaLMetricsCallback(report=False)] if measure else []
    with _impatient():
        torch.manual_seed(0)
        module = kind()
        host = trainer(Path(folder), Odd(), *ours, devices=2, max_epochs=1, strategy="ddp", log_every_n_steps=2)
        with contextlib.suppress(RuntimeError):
            host.fit(module, loader(8))
    return parameters(module)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    own = Ranks(2)
    yield own
    own.close()


TRAINERS: dict[str, Callable[..., list[float]]] = {"transformers": transformers, "lightning": lightning}


@faults(ROWS)
def test_both_ranks_end_with_the_same_parameters(case, ranks, tmp_path):
    host, _, what = case.partition("-")
    expected = ranks.run(TRAINERS[host], str(tmp_path / "without"), what, False)
    assert ranks.run(TRAINERS[host], str(tmp_path / "with"), what, True) == expected
