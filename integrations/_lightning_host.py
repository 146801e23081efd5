"""Lightning under either of its names, and what its strategies and loggers tell."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from areal_callbacks.topology import Topology
from areal_callbacks.writers.guests import tensorboard_guest, wandb_guest

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.writers.base import MetricWriter

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:
        raise ImportError("this callback needs lightning: pip install 'areal-callbacks[lightning]'") from error

__all__ = ["Callback", "LightningModule", "Trainer", "guests_of", "topology_of"]


def topology_of(strategy: Any) -> Topology:
    """By the device mesh of the strategy, if it has one."""
    mesh = getattr(strategy, "_device_mesh", None)
    return Topology.data_parallel() if mesh is None else Topology.from_mesh(mesh)


def guests_of(loggers: Iterable[Any], config: MetricsConfig) -> list[MetricWriter]:
    """What a row of scalars cannot carry, into the loggers' own runs, which exist on the main process only."""
    guests: list[MetricWriter] = []
    for logger in loggers:
        names = {cls.__name__ for cls in type(logger).__mro__}
        run = functools.partial(getattr, logger, "experiment")
        if "WandbLogger" in names:
            guests.append(wandb_guest(config.moe_balance, run, step_key="trainer/global_step"))
        elif "TensorBoardLogger" in names:
            guests.append(tensorboard_guest(config.moe_balance, run))
    return guests
