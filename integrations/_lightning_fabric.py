"""Fabric: events that it does not offer, from wraps on the instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from areal_callbacks.config import MetricsConfig
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.session.step_exports import StepExports
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter


class FabricRun:
    """One Fabric and everything that is set up with it.

    Args:
        fabric: hears our calls through its own ``log`` and ``log_dict``.
        config: of the session.
        topology: who contributes what.
        guests: writers into the loggers of the Fabric.
    """

    def __init__(self, fabric: Any, config: MetricsConfig, topology: Topology, guests: Iterable[MetricWriter]) -> None:
        folder = next((logger.log_dir for logger in fabric.loggers if getattr(logger, "log_dir", None)), None)
        self.session = MetricsSession(
            config, output_dir=None if folder is None else Path(folder, "areal_metrics"), guests=tuple(guests)
        )
        self._exports = StepExports(self.session, files_only=not fabric.loggers)
        self._topology = topology
        self._fabric = fabric
        self._patches = Patches()
        self._patches.wrap(fabric.strategy, "optimizer_step", self._around_step)
        self._patches.wrap(fabric, "backward", self._around_backward)
        self._patches.wrap(fabric, "log", self._around_log)
        self._patches.wrap(fabric, "log_dict", self._around_log_dict)
        self._optimizers: list[Optimizer] = []

    def belongs_to(self, fabric: Any) -> bool:
        """The Fabric of this run is the given one."""
        return self._fabric is fabric

    def attach(self, module: nn.Module) -> None:
        """Fabric has set up a model."""
        self.session.attach(module, topology=self._topology, device=self._fabric.device, begin_with_forward=True)

    def close(self) -> None:
        """Log the tail and undo everything. Collective."""
        step = self._exports.tail_step
        self._exports.finish()
        metrics = self._exports.metrics(step)
        self._patches.undo()
        if metrics:
            self._fabric.log_dict(metrics, step=step)
        self.session.close()

    def _around_step(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, Optimizer) and all(optimizer is not known for known in self._optimizers):
            self._optimizers.append(optimizer)
            self.session.observe_optimizer(optimizer)
        output = original(optimizer, *args, **kwargs)
        self._exports.boundary()
        return output

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        self.session.may_end()
        return output

    def _around_log(self, original: Callable[..., Any], name: str, value: Any, step: int | None = None) -> Any:
        metrics = self._exports.metrics(step, {name: value})
        output = original(name, value, step=step)
        for own, number in metrics.items():
            original(own, number, step=step)
        return output

    def _around_log_dict(
        self, original: Callable[..., Any], metrics: Mapping[str, Any], step: int | None = None
    ) -> Any:
        return original({**metrics, **self._exports.metrics(step, metrics)}, step=step)
