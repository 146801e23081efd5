"""One callback for Lightning's Trainer and for Fabric."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._lightning_fabric import FabricRun
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.guests import tensorboard_guest, wandb_guest

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:
        raise ImportError("this callback needs lightning: pip install 'areal-callbacks[lightning]'") from error


class AReaLMetricsCallback(Callback):
    """Puts throughput, MoE balance, timings and whatever is recorded in ``stats_tracker`` into Lightning's loggers.

    ::

        trainer = Trainer(callbacks=[AReaLMetricsCallback()], log_every_n_steps=10)

        fabric = Fabric(callbacks=[AReaLMetricsCallback(every=10)], loggers=logger)

    With a Trainer, automatic or manual optimisation, the numbers share the row of ``self.log`` at every
    ``log_every_n_steps``-th step, as exact floats. Training time runs from ``on_train_batch_start`` to
    ``on_train_batch_end``; the batch is on the device by then.

    With Fabric the span begins with a training forward and ends with the optimizer step. The ranks meet at every
    ``every``-th optimizer step, and what was measured joins the next ``fabric.log`` or ``log_dict``; call :meth:`close`
    at the end, on every rank.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        **options: configuration keys, e.g. ``every=10`` or ``moe_balance=False``.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """

    def __init__(
        self, *, config: MetricsConfig | Mapping[str, Any] | str | None = None, **options: Unpack[MetricsOptions]
    ) -> None:
        self.config = MetricsConfig.make(config, **options)
        self.session: MetricsSession | None = None
        self._saved: dict[str, Any] = {}
        self._fabric_run: FabricRun | None = None
        self._patches = Patches()
        self._due_at: int | None = None
        self._events = 0
        self._batches = 0
        self._reduced_at = 0

    # -- Trainer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.close()
        folder = Path(trainer.log_dir or trainer.default_root_dir, "areal_metrics")
        guests = _guests(self.config, trainer.loggers)
        self.session = MetricsSession(self.config, output_dir=folder, guests=guests).attach(
            trainer.strategy.model,
            topology=_topology(trainer.strategy),
            device=trainer.strategy.root_device,
            forward_methods=[(pl_module, "training_step")],  # without DDP the Trainer calls it, not the module
        )
        for optimizer in trainer.optimizers:
            self.session.observe_optimizer(optimizer, begins=False)
        if self.config.resume_totals and self._saved and trainer.global_step > 0:
            self.session.load_state_dict(self._saved)
        self._events = self._batches = self._reduced_at = 0
        self._patches.wrap(trainer._logger_connector, "log_metrics", self._around_log_metrics)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.session is not None:
            self.session.begin()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        # torch's own step hook fires before the closure that holds forward and backward
        if self.session is not None:
            self.session.optimizer_begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.session is None:
            return
        self.session.end()
        self._batches += 1
        if not _logs_now(trainer, pl_module):
            return
        self._events += 1
        if self._events % self.config.every == 0:
            self._reduce()
            self._due_at = _log_step(trainer)

    def _around_log_metrics(
        self, original: Callable[..., Any], metrics: Mapping[str, Any], step: int | None = None
    ) -> Any:
        """Join the row that Lightning writes right after this batch.

        Not through ``self.log``, which repeats the last value in later rows and keeps float32 unless told otherwise.
        """
        due_at, self._due_at = self._due_at, None
        export = None if due_at is None or self.session is None else self.session.emit(due_at, metrics)
        return original({**metrics, **({} if export is None else export.metrics)}, step=step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The tail since the last row gets a row of its own, also what was recorded after the last batch."""
        if self.session is None:
            return
        self._reduce()
        self.session.reduce(measured=False)
        export = self.session.emit(_log_step(trainer))
        if export is not None:
            for logger in trainer.loggers:
                logger.log_metrics(export.metrics, step=export.step)
        self._saved = self.session.state_dict()
        self.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """The totals for a checkpoint, which every rank dumps together."""
        if self.session is None:
            return self._saved
        self._reduce()
        return self.session.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict

    def _reduce(self) -> None:
        """Collective. Its condition counts batches, which is equal on all ranks."""
        if self.session is not None and self._batches > self._reduced_at:
            self._reduced_at = self._batches
            self.session.reduce()

    # -- Fabric

    def on_after_setup(self, fabric: Any, module: torch.nn.Module) -> None:
        """Fabric has set up a model; further ones join the run, and those of another Fabric begin a new one."""
        if self._fabric_run is not None and not self._fabric_run.belongs_to(fabric):
            self.close()
        if self._fabric_run is None:
            guests = _guests(self.config, fabric.loggers)
            self._fabric_run = FabricRun(fabric, self.config, _topology(fabric.strategy), guests)
            self.session = self._fabric_run.session
        self._fabric_run.attach(module)

    def close(self) -> None:
        """Undo everything. Needed with Fabric only, on every rank: the tail joins its loggers then."""
        if self._fabric_run is not None:
            self._fabric_run.close()
            self._fabric_run = None
        elif self.session is not None:
            self.session.close()
        self._patches.undo()
        self.session = self._due_at = None


def _topology(strategy: Any) -> Topology:
    mesh = getattr(strategy, "_device_mesh", None)
    return Topology.data_parallel() if mesh is None else Topology.from_mesh(mesh)


def _guests(config: MetricsConfig, loggers: Iterable[Any]) -> list[MetricWriter]:
    """What a row of scalars cannot carry, into the loggers' own runs, which exist on the main process only."""
    guests: list[MetricWriter] = []
    for logger in loggers:
        names = {cls.__name__ for cls in type(logger).__mro__}
        run = functools.partial(getattr, logger, "experiment")
        if "WandbLogger" in names:
            guests.append(wandb_guest(config.moe_balance, run, step_key="trainer/global_step"))
        elif "TensorBoardLogger" in names:
            guests.append(tensorboard_guest(config.moe_balance, run))
    return guests


def _logs_now(trainer: Trainer, module: LightningModule) -> bool:
    """Lightning writes a row after this batch; the same condition as its logger connector's."""
    accumulates = trainer.fit_loop._should_accumulate() and module.automatic_optimization
    return not accumulates and bool(trainer._logger_connector.should_update_logs or trainer.fast_dev_run)


def _log_step(trainer: Trainer) -> int:
    """The step that Lightning's loggers use; ``global_step`` counts every optimizer's steps."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
