"""One training of a host that drives Megatron, from its first iteration to its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.core.file_names import MEGATRON_TOTALS_FILE, RUN_FOLDER
from areal_callbacks.core.types import Export
from areal_callbacks.integrations._megatron_session import MegatronSession, attach
from areal_callbacks.safety.door import attempt, guarded_entry
from areal_callbacks.session.saved_totals import SavedTotals
from areal_callbacks.session.schedule import LoggingEvents
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import make_guests

try:
    from megatron.bridge.training.callbacks import Callback as _Base
except ImportError:
    _Base = object


@dataclass(frozen=True)
class Host:
    """What the host's own settings say.

    Attributes:
        iteration: where training begins.
        log_interval: iterations between two of its log lines.
        save: folder of the checkpoints that it writes.
        load: folder of the checkpoint that it started from.
        name: of the run.
        tensorboard: its SummaryWriter, on the rank that has one.
        wandb: its W&B writer, on the rank that has one.
    """

    iteration: int = 0
    log_interval: int = 1
    save: str | None = None
    load: str | None = None
    name: str = ""
    tensorboard: Any = None
    wandb: Any = None

    def guests(self, config: MetricsConfig) -> list[MetricWriter]:
        """Writers of what plain scalars cannot carry."""
        names = [name for name in ("tensorboard", "wandb") if getattr(self, name) is not None]
        return make_guests([(name, HostRun(partial(getattr, self, name))) for name in names], config.moe_balance)

    def log(self, export: Export) -> None:
        """Scalars into its trackers, at its iteration; a tracker that raises is reported once."""
        attempt("megatron:log", "metrics could not be logged by Megatron's writers", self._log, export)

    def _log(self, export: Export) -> None:
        if self.tensorboard is not None:
            for name, value in export.metrics.items():
                self.tensorboard.add_scalar(name, value, export.step)
        if self.wandb is not None:
            self.wandb.log(dict(export.metrics), step=export.step)


class TrainingRun:
    """Exports at the host's log events, before its checkpoints and at the end.

    Args:
        host: its settings.
        model: the model chunks.
        config: what to measure.
        writer_rank: None for the last rank.

    Attributes:
        session: what measures.
        is_over: it is closed.
    """

    def __init__(
        self, host: Host, model: nn.Module | Sequence[nn.Module], config: MetricsConfig, writer_rank: int | None
    ) -> None:
        self._host = host
        folder = config.output_dir or (host.save and str(Path(host.save, RUN_FOLDER)))
        self.session: MegatronSession = attach(
            model,
            config=config,
            name=host.name,
            writer_rank=writer_rank,
            guests=attempt("megatron:guests", "no tables of expert loads in the trackers", host.guests, config) or (),
            output_dir=folder or None,
        )
        self._events = LoggingEvents(self.session, host.iteration)
        self.session.start_from(host.iteration)
        self.is_over = False
        if config.resume_totals and host.load and host.iteration > 0:
            totals = SavedTotals(Path(host.load, MEGATRON_TOTALS_FILE)).read(host.iteration)
            if totals is not None:
                self.session.load_state_dict(totals)

    def on_log(self, iteration: int, scalars: Callable[[], Mapping[str, Any]]) -> None:
        """An iteration is over, and logged by the host if its interval says so. Collective where an export is due.

        Args:
            iteration: the host's number of it, counted from 1; equal on all ranks.
            scalars: the host's own values; called if there is an export.
        """
        self._events.progress = iteration
        if iteration % self._host.log_interval == 0 and self._events.reached(iteration):
            self._log(iteration, scalars())

    def on_save(self, iteration: int) -> None:
        """The host saves a checkpoint: the totals in it are whole. Collective."""
        self._events.reduce(max(self._events.progress, iteration))
        if self._host.save and self.session.topology.is_writer:
            SavedTotals(Path(self._host.save, MEGATRON_TOTALS_FILE)).write(self.session.state_dict(), iteration)

    def end(self) -> None:
        """Training is over: export the rest and close; a checkpoint may still follow. Collective."""
        if not self.is_over:
            self._events.finish()
            self._log(self._events.progress, {})
            self.abandon()

    def abandon(self) -> None:
        """Training broke off: write what all ranks have reduced already, and close."""
        if not self.is_over:
            self.is_over = True
            self._hand_over(self._events.flush())
            self._events.close()

    def _log(self, iteration: int, scalars: Mapping[str, Any]) -> None:
        self._hand_over(self._events.export(iteration, scalars))

    def _hand_over(self, export: Export | None) -> None:
        if export is not None:
            self._host.log(export)


class AReaLMetricsCallback(_Base):
    """For hosts with training callbacks (Megatron-Bridge): ``pretrain(..., callbacks=[AReaLMetricsCallback()])``.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        writer_rank: the rank that writes files; None for the last one, where Megatron has its writers.
        **options: configuration keys.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.

    Attributes:
        run: the training that is measured, or was last.
        settings: tells the host's settings; by default the context of its events does.
    """

    def __init__(
        self,
        *,
        config: MetricsConfig | Mapping[str, Any] | str | None = None,
        writer_rank: int | None = None,
        **options: Unpack[MetricsOptions],
    ) -> None:
        self.config = MetricsConfig.make(config, **options)
        self.run: TrainingRun | None = None
        self.settings: Callable[[], Host] | None = None
        self._writer_rank = writer_rank
        self._iteration = 0

    # -- life of a training

    @guarded_entry
    def start(self, host: Host, model: nn.Module | Sequence[nn.Module]) -> None:
        """Training is about to begin."""
        self.abandon()
        self.run = TrainingRun(host, model, self.config, self._writer_rank)

    @guarded_entry
    def end(self) -> None:
        """Training is over: export the rest. Collective."""
        if self.run is not None:
            self.run.end()

    @guarded_entry
    def abandon(self) -> None:
        """Training broke off, or its successor begins."""
        if self.run is not None:
            self.run.abandon()

    # -- the host's events

    @guarded_entry
    def on_train_start(self, context: Any) -> None:
        host = self.settings() if self.settings is not None else _host_of(context)
        self._iteration = host.iteration
        self.start(host, context.model)

    @guarded_entry
    def on_train_step_start(self, context: Any) -> None:
        if self.run is not None:
            self.run.session.observe_megatron_optimizer(context.optimizer)
            self.run.session.exclude_rerun_iterators()
            self.run.session.begin()

    @guarded_entry
    def on_train_step_end(self, context: Any) -> None:
        self._iteration += 1
        if self.run is not None:
            self.run.session.end()
            self.run.on_log(
                self._iteration, lambda: host_scalars({name: getattr(context, name, None) for name in _SCALARS})
            )

    @guarded_entry
    def on_train_end(self, context: Any) -> None:
        self.end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):  # events that hold nothing for us, in whatever version
            return lambda *args, **kwargs: None
        raise AttributeError(name)


_SCALARS = ("loss_dict", "learning_rate", "grad_norm")


def host_scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Losses, learning rate and gradient norm under Megatron's names, from the arguments of its logging function."""
    losses = values.get("loss_dict") or {}
    return {**losses, "learning-rate": values.get("learning_rate"), "grad-norm": values.get("grad_norm")}


def _host_of(context: Any) -> Host:
    """What the state in a context of Megatron-Bridge says."""

    def read(path: str, default: Any = None) -> Any:
        value = context
        for name in path.split("."):
            value = getattr(value, name, None)
        return default if value is None else value

    return Host(
        iteration=int(read("state.train_state.step", 0)),
        log_interval=int(read("state.cfg.logger.log_interval", 1)),
        save=read("state.cfg.checkpoint.save"),
        load=read("state.cfg.checkpoint.load"),
        name=read("state.cfg.logger.wandb_exp_name", ""),
        tensorboard=read("state.tensorboard_logger"),
        wandb=read("state.wandb_logger"),
    )
