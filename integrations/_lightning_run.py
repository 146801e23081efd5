"""One training of a Lightning Trainer, from ``on_train_start`` to its end."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.file_names import RUN_FOLDER
from areal_callbacks.integrations._lightning_host import LightningModule, Trainer, guests_of, topology_of
from areal_callbacks.safety.door import Call, Observer, attempt, guarded
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.session.schedule import LoggingEvents
from areal_callbacks.session.spans import include_calls


class LightningRun(Observer):
    """Measures a training and joins the rows of its loggers.

    Args:
        trainer: is training now.
        config: what to measure.

    Attributes:
        session: what measures.
        is_over: the run has ended.
    """

    family = "lightning"

    def __init__(self, trainer: Trainer, config: MetricsConfig) -> None:
        self.is_over = False
        self.session = MetricsSession(
            config,
            output_dir=attempt("lightning:folder", "the loggers tell no folder", _folder_of, trainer),
            guests=attempt("lightning:guests", "no tables in the loggers", guests_of, trainer.loggers, config) or (),
        )
        self._trainer = trainer
        self._events = LoggingEvents(self.session)
        self._patches = Patches(self.family)
        self._batches = 0
        self._due_at: int | None = None

    @guarded
    def start(self, module: LightningModule) -> None:
        """Attach everything."""
        strategy = self._trainer.strategy
        self.session.attach(
            strategy.model,
            topology=topology_of(strategy),
            device=strategy.root_device,
            forward_methods=[(module, "training_step")],  # without DDP the Trainer calls it, not the module
        )
        for optimizer in self._trainer.optimizers:
            self.session.observe_optimizer(optimizer, begins=False)
        self._patches.wrap(self._trainer._logger_connector, "log_metrics", self._around_log_metrics)
        include_calls(
            self._patches, strategy, "batch_to_device", self.session.included, lambda _: module.trainer.training
        )

    def detach(self) -> None:
        """End the run without meeting the other ranks."""
        if not self.is_over:
            self.is_over = True
            self._patches.undo()
            self._events.close()

    @guarded
    def batch_ended(self, module: LightningModule) -> None:
        """A batch was trained; an export is due where Lightning writes a row now. Collective then."""
        self.session.end()
        self._batches += 1
        if _logs_now(self._trainer, module) and self._events.reached(self._batches):
            self._due_at = _log_step(self._trainer)

    @guarded
    def totals(self) -> dict[str, Any] | None:
        """For a checkpoint, which every rank dumps together. Collective."""
        self._events.reduce(self._batches)
        return self.session.state_dict()

    @guarded
    def finish(self) -> dict[str, Any] | None:
        """The tail since the last row gets a row of its own, also what was recorded late. Collective."""
        self._events.finish(self._batches)
        export = self._events.export(_log_step(self._trainer))
        totals = self.session.state_dict()
        self.detach()
        if export is not None:
            for logger in self._trainer.loggers:
                logger.log_metrics(export.metrics, step=export.step)
        return totals

    def _around_log_metrics(self, metrics: Mapping[str, Any], *args: Any, **kwargs: Any) -> Generator[Call | None]:
        """Join the row that Lightning writes right after this batch.

        Not through ``self.log``, which repeats the last value in later rows and keeps float32 unless told otherwise.
        """
        due_at, self._due_at = self._due_at, None
        export = None if due_at is None else self._events.export(due_at, metrics)
        yield None if export is None else Call(({**metrics, **export.metrics}, *args), kwargs)


def _folder_of(trainer: Trainer) -> Path:
    return Path(trainer.log_dir or trainer.default_root_dir, RUN_FOLDER)


def _logs_now(trainer: Trainer, module: LightningModule) -> bool:
    """Lightning writes a row after this batch; the same condition as its logger connector's."""
    accumulates = trainer.fit_loop._should_accumulate() and module.automatic_optimization
    return not accumulates and bool(trainer._logger_connector.should_update_logs or trainer.fast_dev_run)


def _log_step(trainer: Trainer) -> int:
    """The step that Lightning's loggers use; ``global_step`` counts every optimizer's steps."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
