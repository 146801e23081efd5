"""Guests in the trackers that a host has opened: what a host's own scalar logging cannot carry.

An integration makes one guest for each tracker that its host has, and hands them to the session. They are called on the
host's thread just before the host logs the same step; the scalars are the host's job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from areal_callbacks.writers.swanlab import SwanlabGuest, current_swanlab_run
from areal_callbacks.writers.tensorboard import TensorBoardGuest
from areal_callbacks.writers.trackio import TrackioGuest, current_trackio_run
from areal_callbacks.writers.wandb import WandbGuest, current_wandb_run

if TYPE_CHECKING:
    from areal_callbacks.config import MoEBalanceConfig
    from areal_callbacks.writers.base import MetricWriter


def wandb_guest(
    balance: MoEBalanceConfig,
    run: Callable[[], Any] = current_wandb_run,
    *,
    step_key: str | None,
    gives_step: Callable[[], bool] = lambda: True,
) -> MetricWriter:
    """The expert-load table; ``step_key`` is the host's key for its step, None where it passes ``step=``.

    Where some of its log calls pass none, ``gives_step`` tells whether the coming one does.
    """
    return WandbGuest(run, step_key=step_key, gives_step=gives_step, table_every=balance.expert_table_every)


def tensorboard_guest(balance: MoEBalanceConfig, summary_writer: Callable[[], Any]) -> MetricWriter:
    """The expert-load image and the Custom Scalars page."""
    return TensorBoardGuest(summary_writer, table_every=balance.expert_table_every)


def swanlab_guest(balance: MoEBalanceConfig, run: Callable[[], Any] = current_swanlab_run) -> MetricWriter:
    """The expert-load heat map and, where they are few, single experts."""
    return SwanlabGuest(run, table_every=balance.expert_table_every, per_expert_scalars=balance.per_expert_scalars)


def trackio_guest(balance: MoEBalanceConfig, run: Callable[[], Any] = current_trackio_run) -> MetricWriter:
    """The expert-load picture, the hottest experts and, where they are few, single experts."""
    return TrackioGuest(run, table_every=balance.expert_table_every, per_expert_scalars=balance.per_expert_scalars)
