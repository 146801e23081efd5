"""One training of a Lightning Trainer, from ``on_train_start`` to its end."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.file_names import RUN_FOLDER
from areal_callbacks.integrations._lightning_host import (
    LightningModule,
    Trainer,
    guests_of,
    log_folder_of,
    topology_of,
)
from areal_callbacks.safety.door import Call, Observer, attempt, end_on_error, guarded
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession, open_sessions
from areal_callbacks.session.schedule import LoggingEvents
from areal_callbacks.session.spans import include_calls


class LightningRun(Observer):
    """Measures a training and joins the rows of its loggers.

    Args:
        trainer: is training now.
        config: what to measure.

    Attributes:
        trainer: as given.
        session: what measures.
        is_over: the run has ended.
    """

    family = "lightning"

    def __init__(self, trainer: Trainer, config: MetricsConfig) -> None:
        self.is_over = False
        self.session = MetricsSession(
            config,
            output_dir=attempt("lightning:folder", "the loggers have no readable folder", _folder_of, trainer),
            guests=attempt(
                "lightning:guests", "no tables of expert loads in the loggers", guests_of, trainer.loggers, config
            )
            or (),
        )
        self.trainer = trainer
        self._events = LoggingEvents(self.session, steps=_log_step(trainer))
        self._patches = Patches(self.family)
        self._batches = 0
        self._due_at: int | None = None

    @guarded
    def start(self, module: LightningModule, callback: object) -> None:
        """Attach everything; ``callback`` is the one that made this run."""
        strategy = self.trainer.strategy
        self.session.start_from(self.trainer.global_step)
        self.session.attach(
            strategy.model,
            topology=topology_of(strategy),
            device=strategy.root_device,
            forward_methods=[(module, "training_step")],  # without DDP the Trainer calls it, not the module
        )
        for optimizer in self.trainer.optimizers:
            self.session.observe_optimizer(optimizer, begins=False)
        self._patches.wrap(self.trainer._logger_connector, "log_metrics", self._around_log_metrics)
        include_calls(
            self._patches, strategy, "batch_to_device", self.session.included, lambda _: module.trainer.training
        )
        for owner, name in ((self.trainer.fit_loop.epoch_loop.val_loop, "run"), (self.trainer, "save_checkpoint")):
            self._patches.wrap(owner, name, self._around_pause)
        for earlier in _callbacks_before(callback, self.trainer.callbacks):  # an exception there would hide ours
            self._patches.wrap(earlier, "on_exception", end_on_error(self.detach))

    def _around_pause(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """Validation and saving are no waiting for data."""
        with self.session.excluded():
            yield

    def detach(self) -> None:
        """End the run without meeting the other ranks."""
        if not self.is_over:
            self.is_over = True
            self._patches.undo()
            self._events.progress = self._batches
            self._events.close()

    @guarded
    def break_off(self) -> dict[str, Any] | None:
        """End the run without meeting the other ranks; the totals, for a checkpoint that is saved now."""
        self._events.keep()
        totals = self.session.state_dict()
        self.detach()
        return totals

    @guarded
    def batch_ended(self, module: LightningModule) -> None:
        """A batch was trained; an export is due where Lightning writes a row now. Collective then."""
        self.session.end()
        self._batches += 1
        if _logs_now(self.trainer, module) and self._events.reached(self._batches, _log_step(self.trainer) + 1):
            self._due_at = _log_step(self.trainer)

    @guarded
    def totals(self) -> dict[str, Any] | None:
        """For a checkpoint, which every rank dumps together. Collective."""
        self._events.reduce(self._batches)
        return self.session.state_dict()

    @guarded
    def finish(self) -> dict[str, Any] | None:
        """The tail since the last row gets a row of its own, also what was recorded late, if every rank is here."""
        self._events.finish(self._batches)
        export = self._events.export(_log_step(self.trainer))
        totals = self.session.state_dict()
        self.detach()
        if export is not None:
            for logger in self.trainer.loggers:
                logger.log_metrics(export.metrics, step=export.step)
        return totals

    def _around_log_metrics(self, metrics: Mapping[str, Any], *args: Any, **kwargs: Any) -> Generator[Call | None]:
        """Join the row that Lightning writes right after this batch.

        Not through ``self.log``, which repeats the last value in later rows and keeps float32 unless told otherwise.
        """
        due_at, self._due_at = self._due_at, None
        export = None if due_at is None else self._events.export(due_at, metrics)
        with self.session.excluded():
            yield None if export is None else Call(({**metrics, **export.metrics}, *args), kwargs)


def _callbacks_before(callback: object, callbacks: list[Any]) -> list[Any]:
    """Those that are told about an exception earlier; none if ``callback`` stands inside another one."""
    positions = [position for position, known in enumerate(callbacks) if known is callback]
    return [known if hasattr(known, "__dict__") else type(known) for known in callbacks[: sum(positions[:1])]]


def _folder_of(trainer: Trainer) -> Path | None:
    files = open_sessions.local_folder(log_folder_of(trainer.loggers) or trainer.default_root_dir)
    return None if files is None else files / RUN_FOLDER


def _logs_now(trainer: Trainer, module: LightningModule) -> bool:
    """Lightning writes a row after this batch; the same condition as its logger connector's.

    Except that one rank may be about to stop alone: several ranks meet where their common counter says so.
    """
    if trainer.fit_loop._should_accumulate() and module.automatic_optimization:
        return False
    if trainer.world_size == 1:
        return bool(trainer._logger_connector.should_update_logs or trainer.fast_dev_run)
    every = trainer.log_every_n_steps
    return bool(trainer.fast_dev_run or (every > 0 and (_log_step(trainer) + 1) % every == 0))


def _log_step(trainer: Trainer) -> int:
    """The step that Lightning's loggers use; ``global_step`` counts every optimizer's steps."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
