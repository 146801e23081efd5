"""Callbacks for Lightning's Trainer and for Fabric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._lightning_fabric import FabricRun
from areal_callbacks.integrations._lightning_host import Callback, LightningModule, Trainer
from areal_callbacks.integrations._lightning_run import LightningRun
from areal_callbacks.safety.door import guarded_entry
from areal_callbacks.session import MetricsSession


class AReaLMetricsCallback(Callback):
    """Puts throughput, MoE balance, timings and whatever is recorded in ``stats_tracker`` into Lightning's loggers.

    ::

        trainer = Trainer(callbacks=[AReaLMetricsCallback()], log_every_n_steps=10)

    With automatic or manual optimisation, the numbers share the row of ``self.log`` at every
    ``log_every_n_steps``-th step, as exact floats. Training time runs from ``on_train_batch_start`` to
    ``on_train_batch_end``; the batch is on the device by then.

    A Fabric that is given this callback exchanges it for an :class:`AReaLFabricCallback` when it sets up a model.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        **options: configuration keys, e.g. ``every=10`` or ``moe_balance=False``.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """

    # Mapping first: LightningCLI would read sections as their dataclasses, and refuse `report: false`.
    def __init__(
        self, *, config: Mapping[str, Any] | MetricsConfig | str | None = None, **options: Unpack[MetricsOptions]
    ) -> None:
        self.config = MetricsConfig.make(config, **options)
        self._saved: dict[str, Any] = {}
        self._runs: list[LightningRun] = []  # the last one is the innermost, of a trainer inside another's training
        self._fabric: AReaLFabricCallback | None = None

    @property
    def session(self) -> MetricsSession | None:
        """What measures; None outside of a training."""
        if self._fabric is not None:
            return self._fabric.session
        return self._runs[-1].session if self._runs else None

    @guarded_entry
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._break_off(trainer)
        run = LightningRun(trainer, self.config)
        self._runs.append(run)
        run.start(pl_module, self)
        if self.config.resume_totals and self._saved and trainer.global_step > 0:
            run.session.load_state_dict(self._saved)

    @guarded_entry
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for run in self._runs_of(trainer):
            run.session.begin()

    @guarded_entry
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        # torch's own step hook fires before the closure that holds forward and backward
        for run in self._runs_of(trainer):
            run.session.optimizer_begin()

    @guarded_entry
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for run in self._runs_of(trainer):
            run.batch_ended(pl_module)

    @guarded_entry
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After every ``on_train_end``: what others record there belongs to this training."""
        for run in self._runs_of(trainer):
            self._saved = run.finish() or {}
        self._forget()

    @guarded_entry
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._break_off(trainer)

    @guarded_entry
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._break_off(trainer)

    @guarded_entry
    def state_dict(self) -> dict[str, Any]:
        """The totals for a checkpoint, which every rank dumps together; after an exception those of the last row."""
        return self._runs[-1].totals() or {} if self._runs else self._saved

    @guarded_entry
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict

    @guarded_entry
    def on_after_setup(self, fabric: Any, module: torch.nn.Module) -> None:
        """Fabric has set up a model: give it a callback that has Fabric's hooks only."""
        if self._fabric is None:
            self._fabric = AReaLFabricCallback(config=self.config)
        fabric._callbacks = [self._fabric if known is self else known for known in fabric._callbacks]
        self._fabric.on_after_setup(fabric, module)

    @guarded_entry
    def close(self) -> None:
        """Undo everything. Needed with Fabric only, on every rank: the tail joins its loggers then."""
        if self._fabric is not None:
            self._fabric.close()
        for run in self._runs:
            run.detach()
        self._forget()

    def _runs_of(self, trainer: Trainer) -> list[LightningRun]:
        return [run for run in self._runs if run.trainer is trainer]

    def _break_off(self, trainer: Trainer) -> None:
        for run in self._runs_of(trainer):
            self._saved = run.break_off() or {}
        self._forget()

    def _forget(self) -> None:
        """Those that are over."""
        self._runs = [run for run in self._runs if not run.is_over]

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to no training."""
        return {**vars(self), "_runs": [], "_fabric": None}


class AReaLFabricCallback:
    """Puts throughput, MoE balance, timings and whatever is recorded in ``stats_tracker`` into Fabric's loggers.

    ::

        fabric = Fabric(callbacks=[AReaLFabricCallback(every=10)], loggers=logger)

    The span begins with a training forward and ends with the optimizer step. The ranks meet at every ``every``-th
    optimizer step, and what was measured joins the next ``fabric.log`` or ``log_dict``; call :meth:`close` at the end,
    on every rank.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        **options: configuration keys.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """

    def __init__(
        self, *, config: MetricsConfig | Mapping[str, Any] | str | None = None, **options: Unpack[MetricsOptions]
    ) -> None:
        self.config = MetricsConfig.make(config, **options)
        self._run: FabricRun | None = None

    @property
    def session(self) -> MetricsSession | None:
        """What measures; None until a model was set up, and after :meth:`close`."""
        return None if self._run is None else self._run.session

    @guarded_entry
    def on_after_setup(self, fabric: Any, module: torch.nn.Module) -> None:
        """Fabric has set up a model; further ones join the run, and those of another Fabric begin a new one."""
        if self._run is not None and self._run.fabric is not fabric:
            self.close()
        if self._run is None:
            self._run = FabricRun(fabric, self.config)
            self._run.start()
        self._run.attach(module)

    @guarded_entry
    def close(self) -> None:
        """Log the tail and undo everything, on every rank."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to no training."""
        return {**vars(self), "_run": None}
