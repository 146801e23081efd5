"""The monitors of one run, and the models and optimizers that they are attached to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.records import Records
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.flops.registry import Estimator
from areal_callbacks.monitors.consumers import Kind
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.throughput.null import NullThroughput
from areal_callbacks.monitors.throughput.optimizer_steps import OptimizerSteps
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.door import Observer, attempt, guarded
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session.estimates import Estimates
from areal_callbacks.session.spans import leave_out
from areal_callbacks.topology import Topology

Families: TypeAlias = dict[str, Records | None]
"""Name → this rank's records of an interval; None for a family that failed."""


class Observation(Observer):
    """Makes the configured monitors, attaches them to models and optimizers, and takes everything off again.

    Attributes:
        throughput: does nothing if it is switched off, or nothing is observed yet.
        moe: None likewise; also there without a router: another rank may have some, and this one may write.
        begins_with_forward: a training forward begins the span.
    """

    family = "observation"

    def __init__(self, config: MetricsConfig, tracker: StatsTracker) -> None:
        self.throughput: ThroughputMonitor | NullThroughput = NullThroughput()
        self.moe: MoEBalanceMonitor | None = None
        self.begins_with_forward = False
        self._config = config
        self._tracker = tracker
        self._rollouts = Patches("rollout")
        self._estimates: Estimates | None = None
        self._forward = TrainingForward(self)
        self._optimizers: list[OptimizerSteps] = []

    @guarded
    def attach(
        self,
        parts: Sequence[nn.Module],
        *,
        device: torch.device | None,
        topology: Topology | None,
        estimator: Estimator | None,
        hooks: Mapping[str, Any],
    ) -> None:
        """Hook models; see ``MetricsSession.attach``. If that fails, everything is taken off and switched off.

        Args:
            parts: of the model.
            device: None for that of the first parameter.
            topology: given with the first models, for which the monitors are made.
            estimator: training FLOPs of one sequence.
            hooks: the arguments of :meth:`_hook`.
        """
        device = device or _find_device(parts)
        if topology is not None:
            self._make(parts, device, topology, estimator)
        self._hook(parts, device, **hooks)

    def _make(
        self, parts: Sequence[nn.Module], device: torch.device, topology: Topology, estimator: Estimator | None
    ) -> None:
        """Make the monitors, for this kind of model and device."""
        if self._config.throughput:
            self.throughput = self._make_throughput(parts, device, topology, estimator)
        balance = self._config.moe_balance
        if balance.enabled:
            self.moe = MoEBalanceMonitor(self._forward, contributes_routes=topology.routes, extended=balance.extended)

    def _make_throughput(
        self, parts: Sequence[nn.Module], device: torch.device, topology: Topology, estimator: Estimator | None
    ) -> ThroughputMonitor:
        estimates = Estimates(parts, device, self._config.flops, estimator, self._forward)
        self._estimates = estimates
        return ThroughputMonitor(
            device,
            estimator=estimates.found.estimator,
            tower=estimates.tower,
            is_approximate=estimates.found.is_approximate,
            peak_flops=estimates.peak_flops,
            devices=estimates.devices,
            contributes_tokens=topology.tokens,
            rank=topology.rank,
            token_count_fn=self._config.token_count_fn,
        )

    def _hook(
        self,
        parts: Sequence[nn.Module],
        device: torch.device,
        *,
        forward_methods: Sequence[tuple[nn.Module, str]],
        ignored_calls: Sequence[tuple[object, str]],
        inputs_of: Sequence[nn.Module] | None,
        padding: Any,
    ) -> None:
        if self._estimates is not None:
            self._estimates.join(parts)
        if self.moe is not None:
            self.moe.attach(parts, device)
        self._forward.attach(parts, inputs_of=inputs_of, padding=padding)
        for module, name in forward_methods:
            self._forward.attach_method(module, name)
        for owner, name in ignored_calls:
            self._forward.ignore_calls(owner, name)
        attempt("rollout:attach", "generation counts as training time", self._observe_generation, parts)

    def _observe_generation(self, parts: Sequence[nn.Module]) -> None:
        """Every ``generate`` of a model is taken out of the training time that runs."""
        for module in {module for part in parts for module in part.modules() if _generates(module)}:
            if "generate" not in vars(module):
                self._rollouts.wrap(module, "generate", self._around_generate)

    def _around_generate(self, *args: Any, **kwargs: Any) -> Generator[None]:
        if not self.throughput.running:  # a model calls the ``generate`` of the one inside it
            return
        with leave_out(self.throughput), self._tracker.record_timing("rollout"):
            yield

    def attach_optimizer(self, optimizer: Optimizer, *, begins: bool) -> None:
        """Time the real steps of an optimizer, which may be wrapped by the host.

        Args:
            optimizer: torch's, or a wrapper of one.
            begins: False where the host tells the beginning better.
        """
        self._optimizers.append(OptimizerSteps(optimizer, self._begin_step if begins else None, self._end_step))
        self.throughput.expect_optimizer()

    def _begin_step(self) -> None:
        self.throughput.optimizer_begin()

    def _end_step(self) -> None:
        self.throughput.optimizer_end()

    def stop(self) -> None:
        """Nothing counts any more; what was counted can still be collected."""
        self._rollouts.undo()
        for observer in (self._forward, *self._optimizers):
            observer.detach()

    def detach(self) -> None:
        """Take every hook off."""
        self._rollouts.undo()
        for observer in (self._forward, self.moe, self._estimates, *self._optimizers):
            if observer is not None:
                observer.detach()
        self._optimizers.clear()

    # -- events of the models

    def on_forward(self, module: nn.Module) -> None:
        """A training forward begins."""
        estimates = self._estimates
        if estimates is not None and estimates.is_open and isinstance(self.throughput, ThroughputMonitor):
            estimates.on_forward(self.throughput, module)
        if self.begins_with_forward:
            self.throughput.begin()

    def on_untrained_forward(self) -> None:
        """The host evaluates or generates: it does not wait for data."""
        self.throughput.forget_gap()

    def on_consumed(self, kind: Kind, call: ForwardCall) -> None:
        """A model has consumed its inputs in a training forward."""
        self.throughput.on_consumed(kind, call)

    def on_embedded(self, call: ForwardCall) -> None:
        """Text is embedded for a model that was never called."""
        self.throughput.on_embedded(call)

    def on_outermost(self, call: ForwardCall, *, has_models: bool) -> None:
        """The training forward of what the loop calls has ended."""
        self.throughput.on_outermost(call, has_models=has_models)

    # -- export

    def collect(self) -> Families:
        """This rank's records since the last call."""
        if self._estimates is not None and isinstance(self.throughput, ThroughputMonitor):
            self._estimates.before_export(self.throughput)
        return {monitor.family: self._records_of(monitor) for monitor in self._monitors}

    def accumulate(self, interval: Mapping[str, Records]) -> None:
        """Add a reduced interval to the totals."""
        if isinstance(self.throughput, ThroughputMonitor) and self.throughput.family in interval:
            self.throughput.accumulate(interval[self.throughput.family])

    def derive(self, interval: Mapping[str, Records]) -> tuple[dict[str, float], ExpertLoads | None]:
        """The metrics of a reduced interval, and its routed loads if there are routers."""
        metrics: dict[str, float] = {}
        loads: ExpertLoads | None = None
        if isinstance(self.throughput, ThroughputMonitor) and self.throughput.family in interval:
            reduced = interval[self.throughput.family]
            metrics |= self.throughput.derive(reduced) | self.throughput.derive_memory(reduced)
        if self.moe is not None and self.moe.family in interval:
            loads = self.moe.expert_loads(interval[self.moe.family])
            metrics |= self.moe.derive(loads) if loads else {}
        return metrics, loads

    @property
    def _monitors(self) -> list[ThroughputMonitor | MoEBalanceMonitor]:
        return [one for one in (self.throughput, self.moe) if isinstance(one, ThroughputMonitor | MoEBalanceMonitor)]

    def _records_of(self, monitor: ThroughputMonitor | MoEBalanceMonitor) -> Records | None:
        if self.failed or self._forward.failed or monitor.failed:
            return None
        return collect_records(monitor.family, monitor.collect)


def _generates(module: nn.Module) -> bool:
    return callable(getattr(type(module), "generate", None))


def collect_records(family: str, collect: Callable[[], Records]) -> Records | None:
    """What ``collect`` returns, or None, which the reduction reports to every rank, if it raises."""
    return attempt(f"collect:{family}", f"{family} could not be exported", collect)


def _find_device(parts: Sequence[nn.Module]) -> torch.device:
    """That of the first parameter; one without memory yet will get it on the accelerator, if there is one."""
    parameter = next((parameter for part in parts for parameter in part.parameters()), None)
    if parameter is not None and parameter.device.type != "meta":
        return parameter.device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if parameter is None or accelerator is None else accelerator
