"""With what FLOPs and utilisation are estimated: decided when models are attached and when the first one trains."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import nn

from areal_callbacks.config import FlopsConfig
from areal_callbacks.flops.estimator import TrainingFlops
from areal_callbacks.flops.fields import read_field
from areal_callbacks.flops.registry import Estimator
from areal_callbacks.flops.trained_parts import skip_frozen
from areal_callbacks.monitors.throughput.images import TowerFlops
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.throughput.product_format import ProductFormat
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.door import Observer, attempt, guarded
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session.device_peaks import count_devices, find_device_name, find_peak
from areal_callbacks.session.model_flops import ModelFlops, find_flops, find_model

_COUNTED_IN_FULL = "flops: {frozen: skip_weight_gradient}: %s, so that frozen weights are counted like trained ones"


class Estimates(Observer):
    """Gives the throughput monitor its estimator, and, after the first training forward, its peak.

    Args:
        parts: of the first model.
        device: where it trains.
        options: what is configured.
        estimator: training FLOPs of one sequence, where the host has one.
        forward: tells which forwards train.
    """

    family = "estimates"

    def __init__(
        self,
        parts: Sequence[nn.Module],
        device: torch.device,
        options: FlopsConfig,
        estimator: Estimator | None,
        forward: TrainingForward,
    ) -> None:
        self.devices = count_devices(parts)
        self.found = _find(parts, options, estimator)
        self.tower = None if self.found.tower is None else TowerFlops(self.found.tower)
        configured = options.peak_flops if options.enabled else None
        self.peak_flops = None if configured is None else configured * self.devices
        self._options = options
        self._parts = weakref.WeakSet(parts)
        self._others: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._has_others = False
        self._forward = forward
        self._began = False
        is_wanted = self.found.estimator is not None and self.peak_flops is None
        problem = "the name of the device cannot be read, train_perf/mfu is left out"
        self._device_name = attempt("flops:peak", problem, find_device_name, device) if is_wanted else None
        self._format = ProductFormat(parts, device, forward) if self._device_name is not None else None

    @property
    def is_open(self) -> bool:
        """Something is still to be decided when a model trains."""
        return not self._began or self._format is not None or self._has_others

    @guarded
    def on_forward(self, monitor: ThroughputMonitor, module: nn.Module) -> None:
        """A training forward of a module begins; what is frozen by now is frozen."""
        if self._has_others and module in self._others:
            self._has_others = False
            self._others.clear()
            monitor.leave_out_flops()
            report_once("flops:models", "models of different sizes are trained together: their FLOPs are left out")
        if self._began:
            self._settle_peak(monitor)
            return
        self._began = True
        if self._format is not None:
            self._format.on_forward()
        if self._options.frozen == "skip_weight_gradient" and monitor.estimator is not None:
            monitor.estimator = self._skip_frozen()

    @guarded
    def before_export(self, monitor: ThroughputMonitor) -> None:
        """An interval ends."""
        if self._began:
            self._settle_peak(monitor)

    def _settle_peak(self, monitor: ThroughputMonitor) -> None:
        if self._format is None or self._device_name is None:
            return
        found, self._format = self._format.take(), None
        peak = find_peak(self._device_name, found)
        monitor.peak_flops = None if peak is None else peak * self.devices

    def _skip_frozen(self) -> Estimator | None:
        full, model = self.found.estimator, self.found.model
        if model is None or not isinstance(full, TrainingFlops) or len(self._parts) != 1:
            report_once("flops:frozen", _COUNTED_IN_FULL % "this needs one Hugging Face model and a built-in formula")
            return full
        self._skip_tower(read_field(model.config, "vision_config"))
        problem = _COUNTED_IN_FULL % "the layers of the model cannot be told apart"
        (whole,), name = self._parts, model.class_name
        found = attempt("flops:frozen", problem, skip_frozen, whole, model.config, full, model_class=name)
        if found is None:
            report_once("flops:frozen", problem)
        return found or full

    def _skip_tower(self, vision: object) -> None:
        """A tower without any trained weight has only a forward pass."""
        towers = [m for part in self._parts for m in part.modules() if vars(m).get("config") is vision]
        if self.tower is not None and towers and not any(p.requires_grad for m in towers for p in m.parameters()):
            self.tower.passes = 1

    def join(self, parts: Sequence[nn.Module]) -> None:
        """A further model; if it has another size and trains, one estimator cannot make FLOPs of all lengths."""
        mine, other = self.found.model, find_model(parts)
        if self.found.estimator is None or mine is None or other is None:
            return
        if other.config is not mine.config and other.config != mine.config:
            self._others.update(module for part in parts for module in part.modules())
            self._has_others = True

    def detach(self) -> None:
        """Take the hooks off, and hold no model any more."""
        self._parts.clear()
        self._others.clear()
        self._has_others = False
        if self._format is not None:
            self._format.detach()
            self._format = None


def _find(parts: Sequence[nn.Module], options: FlopsConfig, estimator: Estimator | None) -> ModelFlops:
    if not options.enabled:
        return ModelFlops()
    return find_flops(parts, options) if estimator is None else ModelFlops(estimator)
