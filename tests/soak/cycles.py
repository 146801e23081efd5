"""Very many short trainings, one after the other, under every host: nothing of one is left in the next."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from soak.readings import check_flat, read
from support.sessions import batch
from support.tiny_trainer import fresh_accelerator, moe_model
from torch import nn

Cycle = Callable[[nn.Module, Path], None]
BATCH = batch(3, 5)
QUIET: dict[str, Any] = {"report": False}


def soak(folder: Path, cycles: int) -> dict[str, float]:
    """Train one model again and again, the hosts in turn, with new objects of ours each time.

    Raises:
        AssertionError: a hook or a wrap stays on the model, or memory, objects, threads or handles grow.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, begun = moe_model(), time.perf_counter()
    plain = [vars(module).keys() for module in model.modules()]
    warm = min(10 * len(TURNS), cycles // 2)
    for number in range(cycles):
        if number == warm:
            before = read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the hosts' advice on such short trainings
            TURNS[number % len(TURNS)](model, folder)
        assert _hooks_of(model) == 0
        assert [vars(module).keys() for module in model.modules()] == plain
    check_flat(before, after := read(), megabytes=16, objects=20 * len(TURNS))
    return {
        "cycles": cycles,
        "seconds": time.perf_counter() - begun,
        "megabytes_grown": (after.memory - before.memory) / 2**20,
        "objects_grown": after.objects - before.objects,
    }


def _hooks_of(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def _train(model: nn.Module, optimizer: Any, backward: Callable[[Any], None] = torch.Tensor.backward) -> None:
    backward(model(**BATCH).loss)
    optimizer.step()
    optimizer.zero_grad()


def _loop(model: nn.Module, folder: Path) -> None:
    from areal_callbacks.integrations.fsdp import track

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with track(model, optimizer, output_dir=folder / "loop", **QUIET) as metrics:
        with metrics.step():
            _train(model, optimizer)
        metrics.export(1)


def _accelerate(model: nn.Module, folder: Path) -> None:
    from accelerate import Accelerator

    from areal_callbacks.integrations.accelerate import enable

    fresh_accelerator()
    accelerator = Accelerator(cpu=True)
    enable(accelerator, output_dir=folder / "accelerate", **QUIET)
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    _train(prepared, optimizer, accelerator.backward)
    accelerator.log({"loss": 0.0})
    accelerator.end_training()


def _fabric(model: nn.Module, folder: Path) -> None:
    from lightning.fabric import Fabric

    from areal_callbacks.integrations.lightning import AReaLFabricCallback

    callback = AReaLFabricCallback(output_dir=folder / "fabric", **QUIET)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback])
    prepared, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    _train(prepared, optimizer, fabric.backward)
    callback.close()


def _transformers(model: nn.Module, folder: Path) -> None:
    from support.tiny_trainer import make_trainer

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    callbacks = [AReaLMetricsCallback(**QUIET)]
    make_trainer(folder / "transformers", model=model, callbacks=callbacks, max_steps=1).train()


def _lightning(model: nn.Module, folder: Path) -> None:
    from support.tiny_lightning import Module, loader, trainer

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    module = Module()
    module.model = model
    callback = AReaLMetricsCallback(output_dir=folder / "lightning", **QUIET)
    trainer(folder, callback, max_steps=1, max_epochs=None, logger=False).fit(module, loader(2))


TURNS: tuple[Cycle, ...] = (
    _loop,
    _accelerate,
    _fabric,
    _loop,
    _transformers,
    _loop,
    _accelerate,
    _fabric,
    _loop,
    _lightning,
)
