"""The monitors of one run, and the models and optimizers that they hang on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.records import Records
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.peaks import peak_flops
from areal_callbacks.flops.registry import get_flops_estimator
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.throughput.monitor import Estimator, ThroughputMonitor
from areal_callbacks.monitors.throughput.optimizer_steps import OptimizerSteps
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology


class Observation:
    """Makes the configured monitors, hooks them to models and optimizers, and takes everything off again.

    Attributes:
        throughput: None if it is switched off, or nothing is observed yet.
        moe: None likewise; also there without a router: another rank may have some, and this one may write.
        begins_with_forward: a training forward begins the span.
    """

    def __init__(self, config: MetricsConfig) -> None:
        self.throughput: ThroughputMonitor | None = None
        self.moe: MoEBalanceMonitor | None = None
        self.begins_with_forward = False
        self._config = config
        self._estimated: Any = None
        self._forward = TrainingForward(self)
        self._optimizers: list[OptimizerSteps] = []

    def make(
        self, parts: Sequence[nn.Module], device: torch.device, topology: Topology, estimator: Estimator | None
    ) -> None:
        """Make the monitors, for this kind of model and device."""
        if self._config.throughput:
            flops = self._config.flops
            self._estimated = _model_config(parts) if flops.enabled and estimator is None else None
            peak = (flops.peak_flops or _known_peak(device)) if flops.enabled else None
            self.throughput = ThroughputMonitor(
                device,
                estimator=(estimator or _formula(self._estimated)) if flops.enabled else None,
                peak_flops=peak and peak * _devices(parts),
                contributes_tokens=topology.tokens,
                token_count_fn=self._config.token_count_fn,
            )
        if self._config.moe_balance.enabled:
            self.moe = MoEBalanceMonitor(
                self._forward,
                contributes_routes=topology.routes,
                extended=self._config.moe_balance.extended,
            )

    def attach(
        self,
        parts: Sequence[nn.Module],
        device: torch.device,
        *,
        forward_methods: Sequence[tuple[nn.Module, str]],
        ignored_calls: Sequence[tuple[object, str]],
        inputs_of: Sequence[nn.Module] | None,
    ) -> None:
        """Hook models; see ``MetricsSession.attach``."""
        self._expect_one_formula(parts)
        if self.moe is not None:
            self.moe.attach(parts, device)
        self._forward.attach(parts, inputs_of=inputs_of)
        for module, name in forward_methods:
            self._forward.attach_method(module, name)
        for owner, name in ignored_calls:
            self._forward.ignore_calls(owner, name)

    def _expect_one_formula(self, parts: Sequence[nn.Module]) -> None:
        """The lengths of all models are pooled, and one formula makes FLOPs of them."""
        config = None if self._estimated is None else _model_config(parts)
        if self.throughput is None or config is None or config is self._estimated or config == self._estimated:
            return
        self._estimated = None
        self.throughput.leave_out_flops()
        report_once("flops:models", "models of different sizes are trained together: their FLOPs are left out")

    def attach_optimizer(self, optimizer: Optimizer, begin: Callable[[], None] | None, end: Callable[[], None]) -> None:
        """Call ``begin`` and ``end`` around the real steps of an optimizer, which may be wrapped by the host."""
        self._optimizers.append(OptimizerSteps(optimizer, begin, end))

    def detach(self) -> None:
        """Take every hook off."""
        self._forward.detach()
        if self.moe is not None:
            self.moe.detach()
        for steps in self._optimizers:
            steps.remove()
        self._optimizers.clear()

    # -- told by the models

    def on_forward(self) -> None:
        """A training forward begins."""
        if self.begins_with_forward and self.throughput is not None:
            self.throughput.begin()

    def on_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last: bool) -> bool:
        """What a training forward was given."""
        return self.throughput is None or self.throughput.on_inputs(args, kwargs, last=last)

    # -- export

    def collectors(self) -> dict[str, Callable[[], Records | None]]:
        """Family → this rank's records since the last call; None where its monitor was switched off."""
        monitors = [monitor for monitor in (self.throughput, self.moe) if monitor is not None]
        return {monitor.family: self._unless_failed(monitor) for monitor in monitors}

    def accumulate(self, interval: Mapping[str, Records]) -> None:
        """Add a reduced interval to the totals."""
        if self.throughput is not None and self.throughput.family in interval:
            self.throughput.accumulate(interval[self.throughput.family])

    def derive(self, interval: Mapping[str, Records]) -> tuple[dict[str, float], ExpertLoads | None]:
        """The metrics of a reduced interval, and its routed loads if there are routers."""
        metrics: dict[str, float] = {}
        loads: ExpertLoads | None = None
        if self.throughput is not None and self.throughput.family in interval:
            metrics |= self.throughput.derive(interval[self.throughput.family])
        if self.moe is not None and self.moe.family in interval:
            loads = self.moe.expert_loads(interval[self.moe.family])
            metrics |= (loads and self.moe.derive(loads)) or {}
        return metrics, loads

    def _unless_failed(self, monitor: ThroughputMonitor | MoEBalanceMonitor) -> Callable[[], Records | None]:
        return lambda: None if self._forward.failed or monitor.failed else monitor.collect()


def _model_config(parts: Sequence[nn.Module]) -> Any:
    """The configuration of the outermost model that has one with a ``model_type``."""
    modules = (module for part in parts for module in part.modules())
    configs = (getattr(module, "config", None) for module in modules)
    return next((config for config in configs if getattr(config, "model_type", None)), None)


def _formula(config: Any) -> Estimator | None:
    try:
        found = None if config is None else get_flops_estimator(config)
        return None if isinstance(found, EncoderDecoderFlops) else found  # the target's length is not recorded
    except Exception as error:  # noqa: BLE001 - an unusual configuration must not cost the tokens and seconds
        report_once("flops:estimator", f"no FLOPs can be estimated, they are left out: {error!r}")
        return None


def _devices(parts: Sequence[nn.Module]) -> int:
    """Devices that this process trains on: several under DataParallel."""
    return max((len(part.device_ids) for part in parts if isinstance(part, nn.DataParallel)), default=1) or 1


def _known_peak(device: torch.device) -> float | None:
    return peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
