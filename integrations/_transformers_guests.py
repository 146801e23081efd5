"""Which of a Hugging Face Trainer's trackers can take more than scalars."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from areal_callbacks.integrations._transformers_host import Trainer, integration_utils
from areal_callbacks.writers.guests import swanlab_guest, tensorboard_guest, trackio_guest, wandb_guest

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.writers.base import MetricWriter

_STEP_KEY = "train/global_step"


def guests_of(trainer: Trainer, config: MetricsConfig) -> list[MetricWriter]:
    """A guest for every tracker callback of this trainer; none without MoE balance, which is all that they show."""
    guests: list[MetricWriter] = []
    balance = config.moe_balance
    for callback in trainer.callback_handler.callbacks if balance.enabled else ():
        if isinstance(callback, integration_utils.WandbCallback):
            guests.append(wandb_guest(balance, step_key=_STEP_KEY))
        elif isinstance(callback, integration_utils.TensorBoardCallback):
            guests.append(tensorboard_guest(balance, partial(getattr, callback, "tb_writer")))
        elif isinstance(callback, integration_utils.SwanLabCallback):
            guests.append(swanlab_guest(balance))
        elif isinstance(callback, integration_utils.TrackioCallback):
            guests.append(trackio_guest(balance))
    return guests
