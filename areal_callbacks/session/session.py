"""One run: monitors, trackers and writers wired to the events of a training loop."""

from __future__ import annotations

import itertools
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
from areal_callbacks.core.records import Records, pool
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import COUNT_SUFFIX, Export, Run
from areal_callbacks.monitors.throughput.monitor import Estimator
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session.exporter import Interval, Source, join_metrics, merge_intervals, reduce_sources
from areal_callbacks.session.host_events import HostEvents
from areal_callbacks.session.observation import Observation
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.publisher import Publisher, default_publisher

_STATS = "stats"
_OPEN: list[weakref.ref[MetricsSession]] = []


class MetricsSession(HostEvents):
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
        self._observation = Observation(self.config)
        self._pending: Interval | None = None
        self._publisher: Publisher | None = None
        self._attached = False
        self._last_step = 0
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
            self._observation.make(parts, device, self.topology, flops_estimator)
        self._observation.begins_with_forward = begin_with_forward
        self._observation.attach(
            parts, device, forward_methods=forward_methods, ignored_calls=ignored_calls, inputs_of=inputs_of
        )
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
        self._observation.attach_optimizer(optimizer, self.optimizer_begin if begins else None, self.optimizer_end)
        self.expect_optimizer()

    # -- export

    def export(self, step: int, host: Mapping[str, Any] | None = None) -> Export:
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
        if measured:
            self._steps_since_reduced = 0
        interval = reduce_sources(self._sources(measured), self.topology)
        self._observation.accumulate(interval)
        if measured and self._pending is not None:  # a family that fails later would pass a part off as the whole
            self._pending = {name: part for name, part in self._pending.items() if name in interval or name == _STATS}
        if any(part.keys or part.sums or part.maxima for part in interval.values()):
            self._pending = merge_intervals(self._pending, interval)

    @property
    def has_pending(self) -> bool:
        """Something was reduced and not emitted yet; equal on all ranks."""
        return self._pending is not None

    def emit(self, step: int, host: Mapping[str, Any] | None = None) -> Export | None:
        """Derive what was reduced, publish it on the writer rank, and return it; None if nothing was reduced. Local.

        Args:
            step: the host's global step.
            host: what the host logs for the same step, for the files; values that are no single number are left out.
        """
        if self._pending is None:
            return None
        interval, self._pending = self._pending, None
        self._last_step = step
        export = self._derive(interval, step, _numbers(host or {}))
        if self.topology.is_writer and not self._closed:
            self._publish(export)
        return export

    def _sources(self, measured: bool) -> list[Source]:
        sources = [Source(_STATS, self._recorded, self.topology.stats)]
        collectors = self._observation.collectors() if measured else {}
        return sources + [Source(family, collect) for family, collect in collectors.items()]

    def _recorded(self) -> Records:
        own = self.tracker.collect()
        return pool([own, stats_tracker.collect_all()]) if _first_open() is self else own

    def _derive(self, interval: Interval, step: int, host: dict[str, float]) -> Export:
        measured, loads = self._observation.derive(interval)
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
        self._observation.detach()
        if self._publisher is not None:
            self._publisher.close()

    def __enter__(self) -> MetricsSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; after a clean block the steps since the last export go to the files, which is collective."""
        try:
            if kind is None and self._steps_since_reduced and not self._closed:
                self.export(self._last_step + self._steps_since_reduced)
        except Exception as trouble:  # noqa: BLE001 - the process group may be gone already
            report_once("session:tail", f"the steps since the last export could not be reduced: {trouble!r}")
        finally:
            self.close()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    scalars = {name: value.item() if _is_scalar(value) else value for name, value in values.items()}
    return {name: float(value) for name, value in scalars.items() if isinstance(value, int | float)}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex()


def _default_folder(config: MetricsConfig) -> Path:
    if config.stats_logger is not None:
        return config.stats_logger.folder
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = {session._output_dir for session in _open_sessions()}  # its folder may not be there yet
    folders = (Path("areal_metrics", stamp if number == 1 else f"{stamp}-{number}") for number in itertools.count(1))
    return next(folder for folder in folders if folder not in taken and not folder.exists())


def _open_sessions() -> Iterator[MetricsSession]:
    return (session for session in (reference() for reference in _OPEN) if session is not None)


def _first_open() -> MetricsSession | None:
    return next(_open_sessions(), None)


def _device_of(parts: Sequence[nn.Module]) -> torch.device:
    """That of the first parameter; one without memory yet will get it on the accelerator, if there is one."""
    parameter = next((parameter for part in parts for parameter in part.parameters()), None)
    if parameter is not None and parameter.device.type != "meta":
        return parameter.device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if parameter is None or accelerator is None else accelerator
