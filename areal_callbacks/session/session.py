"""One run: monitors, trackers and writers wired to the events of a training loop."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from areal_callbacks import stats_tracker
from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.grouped import pool_grouped
from areal_callbacks.core.numbers import keep_numbers
from areal_callbacks.core.records import Records
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import Export, Run
from areal_callbacks.flops.registry import Estimator
from areal_callbacks.monitors.throughput.optimizer_steps import list_optimizers
from areal_callbacks.report.shown import Report, show_report
from areal_callbacks.safety.door import attempt, guarded_entry
from areal_callbacks.safety.later import end_now
from areal_callbacks.session import open_sessions
from areal_callbacks.session.exporter import Exporter
from areal_callbacks.session.late_records import LateRecords
from areal_callbacks.session.observation import Observation
from areal_callbacks.session.other_ranks import OtherRanks
from areal_callbacks.session.outputs import Outputs
from areal_callbacks.session.selection import make_selection
from areal_callbacks.session.spans import set_aside
from areal_callbacks.session.step_events import StepEvents
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter


class MetricsSession(StepEvents):
    """Everything that one run measures, driven by the events of its host.

    A training loop and the moments at which each event belongs::

        session = MetricsSession(every=1)
        session.attach(model, optimizer, topology)     # a further model or optimizer may join later
        for batch in loader:                           # waiting for data is no training time
            session.begin()                            # work starts; a second call does nothing
            session.count_inputs(batch)                # only if the model will see another batch than this one
            loss = model(**batch).loss                 # hooks: tokens and routed counts, if this forward trains
            loss.backward()
            session.may_end()                          # only if the host cannot tell whether a step follows
            session.optimizer_begin()                  # unless observe_optimizer() has put hooks on the optimizer
            optimizer.step()
            session.optimizer_end()                    # or optimizer_skipped(), if the host refused to step
            session.end()                              # work ends; a second call does nothing
            if evaluation_is_due:
                with session.excluded("evaluation"):   # inside begin() and end(): taken out, timeperf/evaluation
                    evaluate()
            if log_is_due:                             # the same on all ranks
                session.reduce()                       # collective: every rank
                export = session.emit(step)            # local; export() is reduce() and emit() in one
        session.close()

    Between reductions nothing waits for the device and nothing is communicated. A configuration error raises when the
    session is made; whatever fails later is reported once, and training goes on.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        output_dir: where files go unless the configuration says so; by default the folder of its ``stats_logger``
            section, or ``./areal_metrics/<time>``.
        name: of the run, for people.
        guests: writers into the trackers of the host, called inside ``emit`` on the caller's thread.
        **overrides: configuration keys.

    Attributes:
        tracker: this run's own tracker; exported with everything else.
        topology: who contributes what.
        is_closed: nothing is measured any more.
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
        end_now()
        self.config = MetricsConfig.make(config, **overrides)
        self.tracker = StatsTracker()
        self.topology = Topology()
        self.output_dir = open_sessions.choose_folder(self.config, output_dir)
        self._outputs = Outputs(Run(self.output_dir, self.config.to_dict(), name), self.config, guests)
        self._select = make_selection(self.config)
        self._observation = Observation(self.config, self.tracker)
        self._exporter = Exporter(self._observation)
        self._others = OtherRanks(None)
        self._attached = self.is_closed = False
        self._last_step = self._steps_since_reduced = 0
        open_sessions.add(self)
        weakref.finalize(self, self._observation.detach).atexit = False  # nothing refers to it: a cell has run again

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
        padding: object = None,
        flops_estimator: Estimator | None = None,
    ) -> MetricsSession:
        """Observe a model (or the parts of one), as wrapped as the loop calls it, and its optimizers.

        Further calls add to the run; the first one decides topology, device and FLOPs. If a model cannot be observed,
        nothing stays attached: the monitors are switched off, with one message.

        Args:
            model: what the loop calls; several parts for a pipeline.
            optimizer: timed by torch's own step hooks. A host with better events leaves it out and calls
                ``optimizer_begin`` and ``optimizer_end``.
            topology: who contributes what; by default every process has its own data.
            device: where the model trains, if not where its first parameter lies.
            begin_with_forward: a training forward begins the span, for hosts without an earlier event.
            forward_methods: (module, name) of methods that the host calls instead of the module itself.
            ignored_calls: (owner, name) of methods inside which the host runs the model without training it.
            inputs_of: the parts that are given the batch, all by default; not later parts of a pipeline.
            padding: a tokenizer or a configuration: its ``pad_token_id`` and ``eos_token_id`` are taken where the
                model's own configuration names no padding.
            flops_estimator: training FLOPs of one sequence, for a model without a Hugging Face configuration.
        """
        self._observe(
            [model] if isinstance(model, nn.Module) else model,
            topology,
            begin_with_forward=begin_with_forward,
            device=device,
            estimator=flops_estimator,
            hooks={
                "forward_methods": forward_methods,
                "ignored_calls": ignored_calls,
                "inputs_of": inputs_of,
                "padding": padding,
            },
        )
        self._observe_optimizers(optimizer)
        return self

    @guarded_entry
    def _observe(
        self, parts: Sequence[nn.Module], topology: Topology | None, *, begin_with_forward: bool, **options: Any
    ) -> None:
        is_first, self._attached = not self._attached, True
        if is_first:
            self.topology = topology or Topology.data_parallel()
            self._others = OtherRanks(self.topology.world)
        self._observation.begins_with_forward = begin_with_forward
        self._observation.attach(list(parts), topology=self.topology if is_first else None, **options)

    @guarded_entry
    def _observe_optimizers(self, given: Optimizer | Iterable[Optimizer] | None) -> None:
        for optimizer in list_optimizers(given):
            self.observe_optimizer(optimizer)

    @guarded_entry
    def observe_optimizer(self, optimizer: Optimizer, *, begins: bool = True) -> None:
        """Count and time the real steps of an optimizer through torch's own hooks.

        Args:
            optimizer: a torch optimizer, or Accelerate's or Lightning's wrapper of one.
            begins: its step begins with ``step()``; otherwise the host calls ``optimizer_begin``, because forward and
                backward run in a closure inside the step.
        """
        self._observation.attach_optimizer(optimizer, begins=begins)

    # -- export

    def export(self, step: int, host: Mapping[str, Any] | None = None) -> Export:
        """:meth:`reduce` and :meth:`emit` in one. Collective: every rank calls it."""
        self.reduce()
        return self.emit(step, host) or Export(step, {}, time=time.time())

    @guarded_entry
    def reduce(self, *, measured: bool = True) -> None:
        """Reduce the time since the last call and keep it for :meth:`emit`. Collective: every rank calls it.

        Args:
            measured: False leaves the monitors alone, e.g. where nothing was trained since the last call.
        """
        if measured:
            self._steps_since_reduced = 0
        with set_aside(self._observation.throughput):
            self.topology = self._others.find(self.topology)
            self._exporter.reduce(self._take_recorded, self.topology, measured=measured)

    @guarded_entry
    def join(self) -> bool:
        """Whether all ranks are at the end of training for a last :meth:`reduce`, the same on every rank."""
        self.topology = self._others.find(self.topology)
        return self._others.join()

    @property
    def rule(self) -> str:
        """What the lengths of sequences are read from, for people; empty if nothing was read yet."""
        return self._observation.throughput.rules

    @property
    def has_work(self) -> bool:
        """This rank has trained something since the last :meth:`reduce`."""
        return self._observation.throughput.has_work

    @property
    def has_pending(self) -> bool:
        """Something was reduced and not emitted yet; equal on all ranks."""
        return self._exporter.has_pending

    @guarded_entry
    def emit(self, step: int, host: Mapping[str, Any] | None = None) -> Export | None:
        """Derive what was reduced, publish it on the writer rank, and return it; None if nothing was reduced. Local.

        Args:
            step: the host's global step.
            host: what the host logs for the same step, for the files; values that are no single number are left out.
        """
        with set_aside(self._observation.throughput):
            export = self._exporter.take(step, keep_numbers(host or {}))
            if export is not None:
                self._last_step = step
                if self.topology.is_writer:
                    self._outputs.publish(export)
            return export if export is None or self._select is None else self._select(export)

    def _take_recorded(self) -> Records:
        own = self.tracker.collect()
        return pool_grouped([own, stats_tracker.collect_all()]) if open_sessions.first() is self else own

    def report(self) -> Report:
        """Build the report of what this process has written so far, for a notebook to show inline; on the writer rank.

        Raises:
            ValueError: nothing was exported yet.
        """
        return show_report(self.output_dir)

    @guarded_entry
    def start_from(self, progress: int) -> None:
        """The host tells, before the first export, where it begins: 0 is a fresh training, else it continues one."""
        self._outputs.resumes = progress > 0

    @guarded_entry
    def state_dict(self) -> dict[str, Any]:
        """The cumulative totals, JSON-serialisable and equal on all ranks after a :meth:`reduce`."""
        return {"totals": self._observation.throughput.state_dict()}

    @guarded_entry
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the totals of an earlier run; for after :meth:`attach`. Damaged ones are reported, and restart."""
        self._outputs.resumes = True
        load = self._observation.throughput.load_state_dict
        attempt("session:totals", "the saved totals cannot be read, they restart", lambda: load(state["totals"]))

    @guarded_entry
    def close(self) -> None:
        """Undo every hook and flush the writers; whatever was not emitted is dropped. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._others.leave()
            open_sessions.remove(self)
            try:
                self._observation.detach()
            finally:
                self._outputs.close()

    def late_records(self) -> LateRecords:
        """Around the host's last events, after :meth:`close`."""
        return LateRecords(self._exporter, self._outputs, self.topology, self._last_step)

    def __enter__(self) -> Self:
        return self

    @guarded_entry
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close; after a clean block on every rank what came since the last export goes to the files."""
        try:
            if kind is None and not self.is_closed and self.join():
                steps = self._steps_since_reduced
                self.reduce(measured=steps > 0 or self.has_work)
                self.emit(self._last_step + steps)
        finally:
            self.close()
