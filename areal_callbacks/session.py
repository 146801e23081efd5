"""One run: monitors, trackers and writers wired to the events of a training loop."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from areal_callbacks import stats_tracker
from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.records import Records, pool
from areal_callbacks.core.reporting import report_once
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import COUNT_SUFFIX, Export, Run
from areal_callbacks.export import Interval, Source, join_metrics, merge_intervals, reduce_sources
from areal_callbacks.flops.peaks import peak_flops
from areal_callbacks.flops.registry import get_flops_estimator
from areal_callbacks.monitors.moe_balance import MoEBalanceMonitor
from areal_callbacks.monitors.throughput import Estimator, ThroughputMonitor
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.publisher import Publisher, default_publisher
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter

_STATS = "stats"
_OPEN: list[weakref.ref[MetricsSession]] = []


class MetricsSession:
    """Everything that one run measures, driven by the events of its host.

    ::

        session = MetricsSession(every=1)
        session.attach(model, optimizer, Topology.data_parallel())
        for step, batch in enumerate(loader):
            session.begin()                    # idempotent: a micro-batch or a step, as the host has it
            loss = model(**batch).loss         # tokens and routed counts, if this is a training forward
            loss.backward()
            optimizer.step()                   # timed by hooks on the optimizer
            session.end()
            log(session.export(step).metrics)  # collective: every rank
        session.close()

    Between exports nothing waits for the device and nothing is communicated. ``export`` is ``reduce`` (the collectives)
    followed by ``emit`` (deriving and publishing); a host that can log only at other moments than those at which all
    its ranks meet calls the two itself, and several reduced intervals become one.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        output_dir: where files go unless the configuration says so. If neither does: the folder of its ``stats_logger``
            section, or ``./areal_metrics/<time>``.
        name: of the run, for people.
        guests: writers into the trackers of the host, called inside ``emit`` on the caller's thread.
        **overrides: configuration keys.

    Attributes:
        tracker: this run's own tracker; exported with everything else.
    """

    def __init__(
        self,
        config: MetricsConfig | Mapping[str, Any] | str | None = None,
        *,
        output_dir: str | Path | None = None,
        name: str = "",
        guests: Sequence[MetricWriter] = (),
        **overrides: Any,
    ) -> None:
        self.config = MetricsConfig.make(config, **overrides)
        self.tracker = StatsTracker()
        self.topology = Topology()
        self._name = name
        self._guests = tuple(guests)
        self._output_dir = Path(self.config.output_dir or output_dir or _default_folder(self.config))
        self._forward = TrainingForward(self)
        self._throughput: ThroughputMonitor | None = None
        self._moe: MoEBalanceMonitor | None = None
        self._optimizer_hooks: list[Any] = []
        self._pending: Interval | None = None
        self._publisher: Publisher | None = None
        self._begins_with_forward = False
        self._attached = False
        self._closed = False
        _OPEN.append(weakref.ref(self))

    # -- wiring

    def attach(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        topology: Topology | None = None,
        *,
        device: torch.device | None = None,
        begin_with_forward: bool = False,
        forward_methods: Sequence[tuple[nn.Module, str]] = (),
        ignored_calls: Sequence[tuple[object, str]] = (),
        inputs_of: Sequence[nn.Module] | None = None,
        flops_estimator: Estimator | None = None,
    ) -> MetricsSession:
        """Observe a model (or the parts of one), as wrapped as the loop calls it, and its optimizers.

        Called again, further models and optimizers join the run; the first call decides topology, device and FLOPs.

        Args:
            model: what the loop calls; several parts for a pipeline.
            optimizer: timed by torch's own step hooks. A host with better events leaves it out and calls
                ``optimizer_begin`` and ``optimizer_end``.
            topology: who contributes what; by default every process has its own data.
            device: where the model trains, if not where its first parameter lies.
            begin_with_forward: a training forward begins the span, for hosts without an earlier event.
            forward_methods: (module, name) of methods that the host calls instead of the module itself.
            ignored_calls: (owner, name) of methods inside which the host runs the model without training it.
            inputs_of: the parts that are given the batch, all by default; a later part of a pipeline is given it again,
                or hidden states.
            flops_estimator: training FLOPs of one sequence, for a model without a Hugging Face configuration.
        """
        parts = [model] if isinstance(model, nn.Module) else list(model)
        device = device or _device_of(parts)
        if not self._attached:
            self._attached = True
            self.topology = topology or Topology.data_parallel()
            self._make_monitors(parts, device, flops_estimator)
        self._begins_with_forward = begin_with_forward
        if self._moe is not None:  # also without a router here: another rank may have some, and this one may write
            self._moe.attach(parts, device)
        self._forward.attach(parts, inputs_of=inputs_of)
        for module, name in forward_methods:
            self._forward.attach_method(module, name)
        for owner, name in ignored_calls:
            self._forward.ignore_calls(owner, name)
        for part in [optimizer] if isinstance(optimizer, Optimizer) else optimizer or ():
            self.observe_optimizer(part)
        return self

    @property
    def is_attached(self) -> bool:
        """A model is observed."""
        return self._attached

    def observe_optimizer(self, optimizer: Optimizer, *, begins: bool = True) -> None:
        """Count and time the real steps of an optimizer through torch's own hooks.

        Args:
            optimizer: a torch optimizer, or Accelerate's or Lightning's wrapper of one.
            begins: its step begins with ``step()``; otherwise the host calls ``optimizer_begin``, because forward and
                backward run in a closure inside the step.
        """
        while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = optimizer.optimizer  # type: ignore[attr-defined]
        if begins:
            self._optimizer_hooks.append(optimizer.register_step_pre_hook(lambda *_: self.optimizer_begin()))
        self._optimizer_hooks.append(optimizer.register_step_post_hook(lambda *_: self.optimizer_end()))
        self.expect_optimizer()

    def _make_monitors(
        self, parts: Sequence[nn.Module], device: torch.device, flops_estimator: Estimator | None
    ) -> None:
        if self.config.throughput:
            self._throughput = self._make_throughput(parts, device, flops_estimator)
        if self.config.moe_balance.enabled:
            self._moe = MoEBalanceMonitor(
                self._forward,
                contributes_routes=self.topology.routes,
                extended=self.config.moe_balance.extended,
            )

    def _make_throughput(
        self, parts: Sequence[nn.Module], device: torch.device, flops_estimator: Estimator | None
    ) -> ThroughputMonitor:
        estimator, peak = None, None
        if self.config.flops.enabled:
            config = _model_config(parts)
            estimator = flops_estimator or (None if config is None else _estimator(config))
            peak = self.config.flops.peak_flops or _known_peak(device)
            peak = peak and peak * _devices(parts)
        return ThroughputMonitor(
            device,
            estimator=estimator,
            peak_flops=peak,
            contributes_tokens=self.topology.tokens,
            token_count_fn=self.config.token_count_fn,
        )

    # -- events of the host, on the step path

    def begin(self) -> None:
        """Training work starts; nothing happens if it has already."""
        if self._throughput is not None:
            self._throughput.begin()

    def end(self) -> None:
        """Training work ends; nothing happens if it has already."""
        if self._throughput is not None:
            self._throughput.end()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One training step of a plain loop: ``begin`` and ``end`` around the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def expect_optimizer(self, *, may_skip: bool = False) -> None:
        """The host will report its optimizer's steps (and those it skips): from now on zero of them is a number."""
        if self._throughput is not None:
            self._throughput.has_optimizer = True
            self._throughput.may_skip = self._throughput.may_skip or may_skip

    def optimizer_begin(self) -> None:
        """An optimizer is about to step."""
        if self._throughput is not None:
            self._throughput.optimizer_begin()

    def optimizer_end(self) -> None:
        """The optimizer has really stepped."""
        if self._throughput is not None:
            self._throughput.optimizer_end()

    def optimizer_skipped(self) -> None:
        """The optimizer has refused to step, for instance because of infinite gradients."""
        if self._throughput is not None:
            self._throughput.optimizer_skipped()

    def count_sequences(self, lengths: Any) -> None:
        """Count a batch whose lengths the host knows better than the forward's arguments, which then no longer count.

        Args:
            lengths: :class:`~areal_callbacks.monitors.sequence_lengths.Lengths`, or integers, or an integer tensor.
        """
        if self._throughput is not None:
            self._throughput.count(lengths)

    def count_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Count a batch that the host changes before its model sees it; forwards are ignored from then on.

        Args:
            inputs: keyword arguments of the model, as they were.
        """
        if self._throughput is not None:
            self._throughput.count_inputs(inputs)

    @contextlib.contextmanager
    def excluded(self, name: str | None = None) -> Iterator[None]:
        """Take a block out of the training time; with a name it is recorded as ``timeperf/<name>``."""
        training = None if self._throughput is None else self._throughput.training
        was_running = training is not None and training.running
        self.end()
        try:
            with self.tracker.record_timing(name) if name else contextlib.nullcontext():
                yield
        finally:
            if was_running:
                self.begin()

    def on_forward(self) -> None:
        """A training forward begins (called by :class:`TrainingForward`)."""
        if self._begins_with_forward:
            self.begin()

    def on_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last: bool) -> bool:
        """What a training forward was given (called by :class:`TrainingForward`)."""
        return self._throughput is None or self._throughput.on_inputs(args, kwargs, last=last)

    # -- export

    def export(self, step: int, host: Mapping[str, float] | None = None) -> Export:
        """Reduce and publish the time since the last export. Collective: every rank calls it.

        Args:
            step: the host's global step.
            host: scalars that the host reports for the same step, for the files.
        """
        self.reduce()
        return self.emit(step, host) or Export(step, {}, time=time.time())

    def reduce(self, *, measured: bool = True) -> None:
        """Reduce the time since the last call and keep it for :meth:`emit`. Collective: every rank calls it.

        Args:
            measured: False leaves the monitors alone, e.g. where nothing was trained since the last call.
        """
        interval = reduce_sources(self._sources(measured), self.topology)
        if self._throughput is not None and self._throughput.family in interval:
            self._throughput.accumulate(interval[self._throughput.family])
        if measured and self._pending is not None:  # a family that fails later would pass a part off as the whole
            self._pending = {name: part for name, part in self._pending.items() if name in interval or name == _STATS}
        if any(part.keys or part.sums or part.maxima for part in interval.values()):
            self._pending = merge_intervals(self._pending, interval)

    @property
    def has_pending(self) -> bool:
        """Something was reduced and not emitted yet; equal on all ranks."""
        return self._pending is not None

    def emit(self, step: int, host: Mapping[str, float] | None = None) -> Export | None:
        """Derive what was reduced, publish it on the writer rank, and return it; None if nothing was reduced. Local."""
        if self._pending is None:
            return None
        interval, self._pending = self._pending, None
        export = self._derive(interval, step, dict(host or {}))
        if self.topology.is_writer and not self._closed:
            self._publish(export)
        return export

    def _sources(self, measured: bool) -> list[Source]:
        sources = [Source(_STATS, self._recorded, self.topology.stats)]
        monitors = [monitor for monitor in (self._throughput, self._moe) if measured and monitor is not None]
        return sources + [Source(monitor.family, _unless_failed(self._forward, monitor)) for monitor in monitors]

    def _recorded(self) -> Records:
        own = self.tracker.collect()
        return pool([own, stats_tracker.collect_all()]) if _first_open() is self else own

    def _derive(self, interval: Interval, step: int, host: dict[str, float]) -> Export:
        measured: dict[str, float] = {}
        loads: ExpertLoads | None = None
        if self._throughput is not None and self._throughput.family in interval:
            measured |= self._throughput.derive(interval[self._throughput.family])
        if self._moe is not None and self._moe.family in interval:
            loads = self._moe.expert_loads(interval[self._moe.family])
            measured |= (loads and self._moe.derive(loads)) or {}
        recorded = interval[_STATS].metrics() if _STATS in interval else {}
        recorded = {name: value for name, value in recorded.items() if not name.endswith(COUNT_SUFFIX)}
        return Export(step, join_metrics(measured, recorded), loads, host, time.time())

    def _publish(self, export: Export) -> None:
        if self._publisher is None:
            self._publisher = default_publisher(
                Run(self._output_dir, self.config.to_dict(), self._name), self.config, self._guests
            )
        self._publisher.publish(export)

    # -- life

    def state_dict(self) -> dict[str, Any]:
        """The cumulative totals, JSON-serialisable and equal on all ranks after a :meth:`reduce`."""
        return {"totals": None if self._throughput is None else self._throughput.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the totals of an earlier run; for after :meth:`attach`."""
        totals = state.get("totals")
        if self._throughput is not None and totals is not None:
            self._throughput.load_state_dict(totals)

    def close(self) -> None:
        """Undo every hook and flush the writers; whatever was not emitted is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        _OPEN[:] = [reference for reference in _OPEN if reference() not in (self, None)]
        self._forward.detach()
        if self._moe is not None:
            self._moe.detach()
        for hook in self._optimizer_hooks:
            hook.remove()
        self._optimizer_hooks.clear()
        if self._publisher is not None:
            self._publisher.close()

    def __enter__(self) -> MetricsSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _default_folder(config: MetricsConfig) -> Path:
    if config.stats_logger is not None:
        return config.stats_logger.folder
    return Path("areal_metrics", time.strftime("%Y%m%d-%H%M%S"))


def _first_open() -> MetricsSession | None:
    return next((session for session in (reference() for reference in _OPEN) if session is not None), None)


def _unless_failed(forward: TrainingForward, monitor: ThroughputMonitor | MoEBalanceMonitor) -> Any:
    """The monitor's records, None where it or the rule that it relies on was switched off."""
    return lambda: None if forward.failed or monitor.failed else monitor.collect()


def _device_of(parts: Sequence[nn.Module]) -> torch.device:
    parameter = next((parameter for part in parts for parameter in part.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _model_config(parts: Sequence[nn.Module]) -> Any:
    """The configuration of the outermost model that has one with a ``model_type``."""
    modules = (module for part in parts for module in part.modules())
    configs = (getattr(module, "config", None) for module in modules)
    return next((config for config in configs if getattr(config, "model_type", None)), None)


def _estimator(config: Any) -> Estimator | None:
    try:
        return get_flops_estimator(config)
    except Exception as error:  # noqa: BLE001 - an unusual configuration must not cost the tokens and seconds
        report_once("flops:estimator", f"no FLOPs can be estimated, they are left out: {error!r}")
        return None


def _devices(parts: Sequence[nn.Module]) -> int:
    """Devices that this process trains on: several under DataParallel."""
    return max((len(part.device_ids) for part in parts if isinstance(part, nn.DataParallel)), default=1) or 1


def _known_peak(device: torch.device) -> float | None:
    return peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
