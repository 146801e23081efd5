"""The trackers of a loop without a logger of its own, from the ``stats_logger`` section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_callbacks.config import MoEBalanceConfig, StatsLoggerConfig
from areal_callbacks.writers.swanlab import SwanlabWriter
from areal_callbacks.writers.tensorboard import TensorBoardWriter
from areal_callbacks.writers.trackio import TrackioWriter
from areal_callbacks.writers.wandb import WandbWriter

if TYPE_CHECKING:
    from areal_callbacks.writers.base import MetricWriter

_OFF = "disabled"


def owned_writers(config: StatsLoggerConfig | None, balance: MoEBalanceConfig | None = None) -> list[MetricWriter]:
    """A writer for every tracker that is on; projects and runs without a name take the experiment's and trial's."""
    if config is None:
        return []
    balance = balance or MoEBalanceConfig()
    project, name, every = config.experiment_name, config.trial_name, balance.expert_table_every
    scalars = balance.per_expert_scalars
    writers: list[MetricWriter] = []
    if config.wandb is not None and config.wandb.mode != _OFF:
        writers.append(WandbWriter(config.wandb, project=project, name=name, table_every=every))
    if config.swanlab is not None and config.swanlab.mode != _OFF:
        writers.append(
            SwanlabWriter(config.swanlab, project=project, name=name, table_every=every, per_expert_scalars=scalars)
        )
    if config.trackio is not None:
        writers.append(
            TrackioWriter(config.trackio, project=project, name=name, table_every=every, per_expert_scalars=scalars)
        )
    if config.tensorboard is not None and config.tensorboard.path is not None:
        writers.append(TensorBoardWriter(config.tensorboard.path, table_every=every))
    return writers
