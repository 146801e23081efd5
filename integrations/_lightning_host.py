"""Lightning under either of its names, and what its strategies and loggers tell."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from areal_callbacks.topology import Topology
from areal_callbacks.writers.report_guests import MlflowRun
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import make_guests

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.writers.base import MetricWriter

try:
    from lightning.fabric import wrappers as fabric_wrappers
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
except ImportError:
    try:
        from lightning_fabric import wrappers as fabric_wrappers
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
    except ImportError as error:
        raise ImportError("this callback needs lightning: pip install 'areal-callbacks[lightning]'") from error

__all__ = ["Callback", "LightningModule", "Trainer", "fabric_wrappers", "guests_of", "log_folder_of", "topology_of"]

_LOGGERS = {
    "WandbLogger": "wandb",
    "TensorBoardLogger": "tensorboard",
    "MLFlowLogger": "mlflow",
    "CometLogger": "comet_ml",
}
_FILE_LOGGERS = (TensorBoardLogger, CSVLogger)


def topology_of(strategy: Any) -> Topology:
    """By the device mesh of the strategy, if it has one."""
    mesh = getattr(strategy, "_device_mesh", None)
    return Topology.data_parallel() if mesh is None else Topology.from_mesh(mesh)


def guests_of(loggers: Iterable[Any], config: MetricsConfig) -> list[MetricWriter]:
    """What a row of scalars cannot carry, into the loggers' own runs, which exist on the main process only."""
    runs = [
        (tracker, HostRun(functools.partial(_find_run, logger, tracker), step_key="trainer/global_step"))
        for logger in loggers
        for name, tracker in _LOGGERS.items()
        if any(cls.__name__ == name for cls in type(logger).__mro__)
    ]
    return make_guests(runs, config.moe_balance)


def log_folder_of(loggers: Sequence[Any]) -> str | None:
    """What ``Trainer.log_dir`` is on this rank; that one is a broadcast, which needs every rank."""
    if not loggers:
        return None
    folder: str | None = loggers[0].log_dir if isinstance(loggers[0], _FILE_LOGGERS) else loggers[0].save_dir
    return folder


def _find_run(logger: Any, tracker: str) -> Any:
    """The client's object of the logger's run; an MLFlowLogger has a client for all runs, and the number of its own."""
    return MlflowRun(logger.experiment, logger.run_id) if tracker == "mlflow" else logger.experiment
