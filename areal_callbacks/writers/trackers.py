"""The trackers, by their names in the configuration: their writers, and their guests in the runs of hosts.

A host's scalars are its own job. What they cannot carry is added by a guest to the same row: an integration says which
of its objects is which tracker, and hands the guests to the session, which calls them on the host's thread just before
the host logs the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_callbacks.config import MoEBalanceConfig, StatsLoggerConfig
from areal_callbacks.writers.report_guests import CometGuest, MlflowGuest
from areal_callbacks.writers.swanlab import SwanlabGuest, SwanlabWriter
from areal_callbacks.writers.tensorboard import TensorBoardGuest, TensorBoardWriter
from areal_callbacks.writers.trackio import TrackioGuest, TrackioWriter
from areal_callbacks.writers.wandb import WandbGuest, WandbWriter

if TYPE_CHECKING:
    from areal_callbacks.writers.base import MetricWriter
    from areal_callbacks.writers.tracker_runs import HostRun


class Tracker(NamedTuple):
    """What this package has for a tracker.

    Attributes:
        guest: makes the guest in a host's run.
        writer: makes the writer of a run of our own from the tracker's section of the configuration; None: there are
            guests only.
        off: the setting of the section, key and value, that switches the tracker off.
    """

    guest: Callable[[HostRun, MoEBalanceConfig], MetricWriter]
    writer: Callable[[Any, MoEBalanceConfig], MetricWriter] | None = None
    off: tuple[str, Any] | None = None


TRACKERS: Mapping[str, Tracker] = {
    "wandb": Tracker(WandbGuest, WandbWriter, off=("mode", "disabled")),
    "swanlab": Tracker(SwanlabGuest, SwanlabWriter, off=("mode", "disabled")),
    "trackio": Tracker(TrackioGuest, TrackioWriter, off=("mode", "disabled")),
    "tensorboard": Tracker(TensorBoardGuest, TensorBoardWriter, off=("path", None)),
    "mlflow": Tracker(MlflowGuest),
    "comet_ml": Tracker(CometGuest),
}


def make_guests(runs: Iterable[tuple[str, HostRun]], balance: MoEBalanceConfig) -> list[MetricWriter]:
    """A guest in every run.

    Args:
        runs: name of the tracker, and the host's run there.
        balance: how often to draw the expert loads, and whether single experts are shown.
    """
    return [TRACKERS[name].guest(run, balance) for name, run in runs]


def make_writers(config: StatsLoggerConfig | None, balance: MoEBalanceConfig) -> list[MetricWriter]:
    """A writer for every tracker that is on; a project or run without a name takes the experiment's or the trial's."""
    if config is None:
        return []
    if balance.per_expert_scalars == "auto":
        balance = replace(balance, per_expert_scalars=config.per_expert_scalars)
    sections = [(kind, getattr(config, name)) for name, kind in TRACKERS.items() if kind.writer is not None]
    return [
        kind.writer(_name_run(section, config), balance)
        for kind, section in sections
        if kind.writer is not None and section is not None and not _is_off(section, kind.off)
    ]


def _is_off(section: Any, off: tuple[str, Any] | None) -> bool:
    return off is not None and getattr(section, off[0]) == off[1]


def _name_run(section: Any, config: StatsLoggerConfig) -> Any:
    """The section with its project, name and id filled in, where it has such keys."""
    names = {"project": config.experiment_name, "name": config.trial_name}
    if suffix := getattr(section, "id_suffix", None):
        suffix = time.strftime("%Y_%m_%d_%H_%M_%S") if suffix == "timestamp" else suffix
        names["id"] = f"{config.experiment_name}_{config.trial_name}_{suffix}"
    return replace(section, **{key: name for key, name in names.items() if not getattr(section, key, name)})
