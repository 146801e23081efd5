"""Which of a Hugging Face Trainer's trackers can take more than scalars."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from areal_callbacks.integrations._transformers_host import Trainer, integration_utils
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import make_guests

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.writers.base import MetricWriter

_CALLBACKS = {
    "wandb": integration_utils.WandbCallback,
    "tensorboard": integration_utils.TensorBoardCallback,
    "swanlab": integration_utils.SwanLabCallback,
    "trackio": integration_utils.TrackioCallback,
    "mlflow": integration_utils.MLflowCallback,
    "comet_ml": integration_utils.CometCallback,
}


def guests_of(trainer: Trainer, config: MetricsConfig) -> list[MetricWriter]:
    """A guest for every tracker callback of this trainer."""
    return make_guests(_find_runs(trainer), config.moe_balance)


def _find_runs(trainer: Trainer) -> Iterator[tuple[str, HostRun]]:
    for callback in trainer.callback_handler.callbacks:
        for name, kind in _CALLBACKS.items():
            if isinstance(callback, kind):
                find = partial(getattr, callback, "tb_writer") if name == "tensorboard" else None
                yield name, HostRun(find, step_key="train/global_step")
