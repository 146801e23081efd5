"""Trackers that are ours to open, with AReaL's keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from areal_callbacks.config.sections import Secret, Section


@dataclass(frozen=True)
class WandbConfig(Section):
    """Weights & Biases, with AReaL's keys.

    Attributes:
        mode: None leaves the choice to ``WANDB_MODE``.
        wandb_base_url: the server; None or empty: the one that W&B's settings name.
        wandb_api_key: used for this run alone, in the memory of this process; None or empty: the one that W&B finds.
        project, entity, name, group, job_type, notes, tags: as in ``wandb.init``.
        config: joins the configuration that the run shows.
        id: of the run; one that exists on the server is continued.
        id_suffix: the id is ``<experiment_name>_<trial_name>_<id_suffix>``; ``"timestamp"`` is the time of the start.
    """

    mode: Literal["online", "offline", "disabled", "shared"] | None = None
    wandb_base_url: str | None = None
    wandb_api_key: Secret | None = None
    project: str | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] | None = ()
    config: dict[str, Any] | None = None
    id: str | None = None
    id_suffix: str | None = None


@dataclass(frozen=True)
class SwanlabConfig(Section):
    """SwanLab, with AReaL's keys.

    Attributes:
        mode: ``cloud`` is SwanLab's own word for online; None leaves the choice to SwanLab.
        api_key: used for this run alone, in the memory of this process; None or empty: the one that SwanLab finds.
        project, name, workspace, logdir: as in ``swanlab.init``.
        config: joins the configuration that the run shows.
    """

    mode: Literal["online", "cloud", "local", "offline", "disabled"] | None = None
    api_key: Secret | None = None
    project: str | None = None
    name: str | None = None
    workspace: str | None = None
    logdir: str | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True)
class TrackioConfig(Section):
    """Trackio, with AReaL's keys; without ``space_id`` everything stays on this machine, with mode ``local`` too."""

    mode: Literal["online", "local", "disabled"] | None = None
    project: str | None = None
    name: str | None = None
    group: str | None = None
    space_id: str | None = None


@dataclass(frozen=True)
class TensorBoardConfig(Section):
    """TensorBoard; ``path`` None is off."""

    path: str | None = None


@dataclass(frozen=True)
class StatsLoggerConfig(Section):
    """Trackers of loops without a logger of their own, as in AReaL; a tracker that is None is off.

    Attributes:
        per_expert_scalars: two series per expert in SwanLab and Trackio, however many there are; ``"auto"``: up to 128
            series. True or false of ``moe_balance.per_expert_scalars`` comes before it.
    """

    experiment_name: str = "areal"
    trial_name: str = "trial"
    fileroot: str = "./logs"
    per_expert_scalars: bool | Literal["auto"] = True
    wandb: WandbConfig | None = None
    swanlab: SwanlabConfig | None = None
    trackio: TrackioConfig | None = None
    tensorboard: TensorBoardConfig | None = None

    @property
    def folder(self) -> Path:
        """``<fileroot>/<experiment_name>/<trial_name>``, where the files of the run lie."""
        return Path(self.fileroot, self.experiment_name, self.trial_name)
