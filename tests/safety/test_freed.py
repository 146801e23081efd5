"""What was measured is freed by reference counts when the training is over, also while our objects are kept.

Each training runs with and without us and with the garbage collector off; what the host itself frees then, it frees
with us, too.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import batch
from support.tiny_trainer import fresh_accelerator, make_trainer, moe_model

Kept = tuple[Any, dict[str, Any]]
"""What a user keeps of ours, and weak references to objects of the host."""


class StoppedError(Exception):
    """Raised by a callback after a step."""


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def step(model: Any, optimizer: Any, backward: Callable[[Any], None] = lambda loss: loss.backward()) -> None:
    backward(model(**batch(3, 5)).loss)
    optimizer.step()
    optimizer.zero_grad()


def watch(**objects: Any) -> dict[str, Any]:
    return {name: weakref.ref(value) for name, value in objects.items()}


def loop(folder: str, measure: bool, ends: bool) -> Kept:
    from areal_callbacks.integrations.fsdp import track

    model = moe_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    metrics = track(model, optimizer, output_dir=folder, report=False) if measure else None
    step(model, optimizer)
    if metrics is not None and ends:
        metrics.export(1)
        metrics.close()
    return metrics, watch(model=model, optimizer=optimizer)


def accelerate(folder: str, measure: bool, ends: bool) -> Kept:
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable

    fresh_accelerator()
    accelerator = Accelerator(cpu=True)
    running = enable(accelerator, output_dir=folder, report=False) if measure else None
    plain = moe_model()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    step(model, optimizer, accelerator.backward)
    accelerator.log({"loss": 0.0})
    if ends:
        accelerator.end_training()
    return running, watch(model=plain, optimizer=optimizer, accelerator=accelerator)


def fabric(folder: str, measure: bool, ends: bool) -> Kept:
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLFabricCallback

    callback = AReaLFabricCallback(output_dir=folder, report=False)
    host = Fabric(accelerator="cpu", devices=1, callbacks=[callback] if measure else [])
    plain = moe_model()
    model, optimizer = host.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
    step(model, optimizer, host.backward)
    host.log("loss", 0.0)
    if ends:
        callback.close()
    return callback, watch(model=plain, optimizer=optimizer, fabric=host)


def transformers(folder: str, measure: bool, ends: bool) -> Kept:
    from transformers import TrainerCallback

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    class Last(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if not ends:
                raise StoppedError

    callback = AReaLMetricsCallback(report=False)
    model = moe_model()
    callbacks = [*([callback] if measure else []), Last()]
    trainer = make_trainer(folder, model=model, callbacks=callbacks, max_steps=2)
    with suppress(StoppedError):
        trainer.train()
    return callback, watch(model=model, trainer=trainer, optimizer=trainer.optimizer, accelerator=trainer.accelerator)


def lightning(folder: str, measure: bool, ends: bool) -> Kept:
    import lightning.pytorch as pl
    from support.tiny_lightning import Module, loader

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    class Last(pl.Callback):
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            if not ends:
                raise StoppedError

    callback = AReaLMetricsCallback(report=False) if measure else pl.Callback()  # each is given the module's ``log``
    module = Module()
    trainer = pl.Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback, Last()],
    )  # fmt: skip
    with suppress(StoppedError):
        trainer.fit(module, loader())
    return callback, watch(model=module.model, module=module, trainer=trainer)


def alive(host: Callable[[str, bool, bool], Kept], folder: Path, **options: bool) -> tuple[set[str], set[str]]:
    """What lives after the host's objects were dropped: by their counts alone, and after a collection."""
    host(str(folder), **options)  # what a first run leaves in caches
    with without_collector():
        kept, watched = host(str(folder), **options)
        by_count = living(watched)
        gc.collect()
        by_collector = living(watched)
        del kept
        return by_count, by_collector


def living(watched: dict[str, Any]) -> set[str]:
    return {name for name, reference in watched.items() if reference() is not None}


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("host", [loop, accelerate, fabric, transformers, lightning])
def test_nothing_is_kept_that_the_host_frees(host, ends, tmp_path):
    without = alive(host, tmp_path, measure=False, ends=ends)
    measured = alive(host, tmp_path, measure=True, ends=ends)
    assert measured[0] <= without[0]
    assert measured[1] <= without[1]
    assert host in (lightning, transformers) or "model" not in without[0], "the comparison would show nothing"


class Referring(torch.nn.Linear):
    """A model that knows what trains it."""


def test_a_model_that_refers_to_its_accelerator_or_session_is_collected(tmp_path):
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable
    from areal_callbacks.integrations.fsdp import track

    fresh_accelerator()
    accelerator = Accelerator(cpu=True)
    enable(accelerator, output_dir=tmp_path / "accelerate", report=False)
    model, other = Referring(2, 2), Referring(2, 2)
    model.accelerator = accelerator
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    other.metrics = track(other, output_dir=tmp_path / "loop", report=False)
    watched = watch(model=model, other=other, accelerator=accelerator)
    del model, other, accelerator
    gc.collect()
    assert not living(watched)


def test_an_accelerator_that_is_dropped_leaves_nothing_wrapped_and_its_rows_in_the_files(tmp_path):
    import accelerate.data_loader
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    from areal_callbacks.integrations.accelerate import enable
    from areal_callbacks.safety.later import end_now
    from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

    owners = (Accelerator, AcceleratedOptimizer, accelerate.data_loader)
    before = [dict(vars(owner)) for owner in owners]
    with without_collector():
        fresh_accelerator()
        accelerator = Accelerator(cpu=True)
        enable(accelerator, output_dir=tmp_path, report=False)
        model = moe_model()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        step(model, optimizer, accelerator.backward)
        assert [dict(vars(owner)) for owner in owners] != before
        del accelerator
        assert [dict(vars(owner)) for owner in owners] == before
        step(model, optimizer)
    end_now()
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if isinstance(row, MetricsRecord)]
    assert [row.metrics["train_perf/tokens"] for row in rows] == [8]
