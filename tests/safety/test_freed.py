"""What was measured is freed by reference counts when the training is over, also while our objects are kept.

Each training runs with and without us and with the garbage collector off; what the host itself frees then, it frees
with us, too.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import batch
from support.tiny_trainer import fresh_accelerator, make_trainer, moe_model

Kept = tuple[Any, dict[str, Any]]
"""What a user keeps of ours, and weak references to objects of the host."""


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


def loop(folder: str, measure: bool) -> Kept:
    from areal_callbacks.integrations.fsdp import track

    model = moe_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    metrics = track(model, optimizer, output_dir=folder, report=False) if measure else None
    step(model, optimizer)
    if metrics is not None:
        metrics.export(1)
        metrics.close()
    return metrics, watch(model=model, optimizer=optimizer)


def accelerate(folder: str, measure: bool) -> Kept:
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable

    fresh_accelerator()
    accelerator = Accelerator(cpu=True)
    running = enable(accelerator, output_dir=folder, report=False) if measure else None
    plain = moe_model()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    step(model, optimizer, accelerator.backward)
    accelerator.log({"loss": 0.0})
    accelerator.end_training()
    return running, watch(model=plain, optimizer=optimizer, accelerator=accelerator)


def fabric(folder: str, measure: bool) -> Kept:
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLFabricCallback

    callback = AReaLFabricCallback(output_dir=folder, report=False)
    host = Fabric(accelerator="cpu", devices=1, callbacks=[callback] if measure else [])
    plain = moe_model()
    model, optimizer = host.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
    step(model, optimizer, host.backward)
    host.log("loss", 0.0)
    callback.close()
    return callback, watch(model=plain, optimizer=optimizer, fabric=host)


def transformers(folder: str, measure: bool) -> Kept:
    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    callback = AReaLMetricsCallback(report=False)
    model = moe_model()
    trainer = make_trainer(folder, model=model, callbacks=[callback] if measure else [], max_steps=2)
    trainer.train()
    return callback, watch(model=model, trainer=trainer, optimizer=trainer.optimizer, accelerator=trainer.accelerator)


def lightning(folder: str, measure: bool) -> Kept:
    import lightning.pytorch as pl
    from support.tiny_lightning import Module, loader

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    callback = AReaLMetricsCallback(report=False)
    module = Module()
    trainer = pl.Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback] if measure else [],
    )  # fmt: skip
    trainer.fit(module, loader())
    return callback, watch(model=module.model, module=module, trainer=trainer)


def alive(host: Callable[[str, bool], Kept], folder: Path, measure: bool) -> tuple[Any, set[str]]:
    host(str(folder), measure)  # what a first run leaves in caches
    with without_collector():
        kept, watched = host(str(folder), measure)
        return kept, {name for name, reference in watched.items() if reference() is not None}


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("host", [loop, accelerate, fabric, transformers, lightning])
def test_nothing_is_kept_that_the_host_frees(host, tmp_path):
    _, without = alive(host, tmp_path, False)
    _, measured = alive(host, tmp_path, True)
    assert measured <= without
    assert host in (lightning, transformers) or "model" not in without, "the comparison would show nothing"
