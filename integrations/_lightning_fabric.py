"""One Fabric and everything that is set up with it."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.file_names import RUN_FOLDER
from areal_callbacks.integrations._lightning_host import fabric_wrappers, guests_of, topology_of
from areal_callbacks.safety.door import Call, Observer, attempt, guarded
from areal_callbacks.safety.later import end_later
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession, open_sessions
from areal_callbacks.session.gradient_sync import GradientSync
from areal_callbacks.session.spans import include_calls
from areal_callbacks.session.step_exports import StepExports


class FabricRun(Observer):
    """Measures what a Fabric trains and joins the rows of its ``log`` and ``log_dict`` calls.

    The span begins with a training forward and ends with the optimizer step; moving a batch and zeroing gradients are
    added. Fabric has no events for these, so its methods are wrapped. Neither it nor what it has set up is kept: when
    the Fabric is freed, everything is undone.

    Args:
        fabric: has set up a model.
        config: of the session.

    Attributes:
        session: what measures.
    """

    family = "fabric"

    def __init__(self, fabric: Any, config: MetricsConfig) -> None:
        self._reference = weakref.ref(fabric, lambda _: self._end())
        self.session = MetricsSession(
            config,
            output_dir=attempt("fabric:folder", "the loggers have no readable folder", _folder_of, fabric),
            guests=attempt(
                "fabric:guests", "no tables of expert loads in the loggers", guests_of, fabric.loggers, config
            )
            or (),
        )
        self._exports = StepExports(self.session, files_only=not fabric.loggers)
        self._sync = GradientSync(self._exports)
        self._patches = Patches(self.family)
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    @property
    def fabric(self) -> Any:
        """As given; None after its end."""
        return self._reference()

    @guarded
    def start(self) -> None:
        """Wrap Fabric's methods."""
        for logger in self.fabric.loggers:
            if any(cls.__name__ == "CSVLogger" for cls in type(logger).__mro__):
                logger.experiment  # noqa: B018 - it warns of files that are in its folder already: ours come later
        self._patches.wrap(self.fabric.strategy, "optimizer_step", self._around_step)
        self._patches.wrap(self.fabric, "backward", self._around_backward)
        self._patches.wrap(self.fabric, "log_dict", self._around_log_dict)
        for owner, name in ((fabric_wrappers, "move_data_to_device"), (self.fabric, "to_device")):
            include_calls(self._patches, owner, name, self.session.included, self._moves_for_training)

    @guarded
    def attach(self, module: nn.Module) -> None:
        """Fabric has set up a model."""
        topology = topology_of(self.fabric.strategy)
        self._modules.add(module)
        self.session.attach(module, topology=topology, device=self.fabric.device, begin_with_forward=True)
        self.session.expect_optimizer()  # Fabric's first step names it, after the first reduction maybe
        self._sync.add(module)

    @guarded
    def finish(self) -> None:
        """Log the tail, if every rank is here, and undo everything."""
        step = self._exports.tail_step
        self._exports.finish()
        metrics = self._exports.metrics(step)
        self._patches.undo()
        if metrics and self.fabric is not None:
            self.fabric.log_dict(metrics, step=step)
        self.detach()

    @guarded
    def _end(self) -> None:
        """The Fabric is being freed: undo everything now, and write what was not logged later."""
        self._take_off()
        self.session.stop()
        end_later(self._exports.close)

    def detach(self) -> None:
        self._take_off()
        self._exports.close()

    def _take_off(self) -> None:
        self._patches.undo()
        self._sync.detach()
        self._modules.clear()
        self._optimizers.clear()

    def _around_step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Generator[None]:
        if isinstance(optimizer, Optimizer) and optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.session.observe_optimizer(optimizer)
            # Fabric's wrapper of an optimizer calls the method of its class
            include_calls(self._patches, type(optimizer), "zero_grad", self.session.included, self._is_ours)
        yield
        self._exports.boundary()

    def _moves_for_training(self, _: Any) -> bool:
        return torch.is_grad_enabled() and any(module.training for module in self._modules)

    def _is_ours(self, optimizer: Any) -> bool:
        return getattr(optimizer, "optimizer", optimizer) in self._optimizers

    def _around_backward(self, *args: Any, **kwargs: Any) -> Generator[None]:
        yield
        self.session.may_end()
        self._sync.backward_ended()

    def _around_log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> Generator[Call]:
        """``log`` comes through here, too."""
        yield Call(({**metrics, **self._exports.metrics(step, metrics)},), {"step": step})


def _folder_of(fabric: Any) -> Path | None:
    """Beside the loggers' files."""
    folder = next((logger.log_dir for logger in fabric.loggers if getattr(logger, "log_dir", None)), None)
    files = None if folder is None else open_sessions.local_folder(folder)
    return None if files is None else files / RUN_FOLDER
