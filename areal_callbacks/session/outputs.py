"""Which writers a run gets. The only place that puts them together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from areal_callbacks.report.writer import ReportWriter
from areal_callbacks.session.findings_watch import FindingsWatch, Listener
from areal_callbacks.session.selection import make_selection, select_for
from areal_callbacks.writers.console import ConsoleWriter
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.tracker_runs import Alerts, HasAlerts
from areal_callbacks.writers.trackers import make_writers

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.core.types import Export, Run
    from areal_callbacks.findings import Finding
    from areal_callbacks.writers.base import MetricWriter


class Outputs:
    """The writers of a session, made with its first export.

    Args:
        run: what the writers are told when they open.
        config: which writers.
        guests: as for :func:`make_publisher`.

    Attributes:
        resumes: the run continues an earlier training; to be set before the first export.
    """

    def __init__(self, run: Run, config: MetricsConfig, guests: Iterable[MetricWriter]) -> None:
        self.resumes: bool | None = None
        self._run = run
        self._make = functools.partial(make_publisher, config=config, guests=tuple(guests))
        self._publisher: Publisher | None = None
        self._closed = False

    def publish(self, export: Export) -> None:
        """Hand an export to the writers; nothing is written after the end."""
        if not self._closed:
            self._publisher = self._publisher or self._make(dataclasses.replace(self._run, resumes=self.resumes))
            self._publisher.publish(export)

    def append(self, export: Export) -> None:
        """Add a row to metrics.jsonl after :meth:`close`; the report that was built then does not have it."""
        writer = JsonlWriter()
        writer.reopen(self._run)
        writer.write(export)
        writer.close()

    def close(self) -> None:
        """Flush and close the writers."""
        self._closed = True
        if self._publisher is not None:
            self._publisher.close()


def make_publisher(
    run: Run, config: MetricsConfig, guests: Iterable[MetricWriter] = (), *, print_every_export: bool = False
) -> Publisher:
    """metrics.jsonl, console summary, and whatever the configuration asks for: the report, trackers of our own.

    Args:
        run: what the writers are told when they open.
        config: its ``stats_logger`` names the trackers that are ours to open, ``report`` whether there is a report.
        guests: writers into the trackers of the host, called on the caller's thread.
        print_every_export: on the console; otherwise the last one, at the end.
    """
    select = make_selection(config)
    trackers, guests = make_writers(config.stats_logger, config.moe_balance), tuple(guests)
    watch = FindingsWatch(_list_listeners(config, [*guests, *trackers]))
    # The report is built from metrics.jsonl, and comes before the trackers, which upload it when they close.
    report = [ReportWriter(config.report.every)] if config.report.enabled else []
    console = (
        [] if config.console == "off" else [ConsoleWriter(every_export=print_every_export, closing=watch.list_lines)]
    )
    return Publisher(
        [watch, *console],
        run=run,
        synchronous=[JsonlWriter(), *report, *select_for(guests, select)],
        trackers=select_for(trackers, select),
    )


def _list_listeners(config: MetricsConfig, writers: Iterable[MetricWriter]) -> list[Listener]:
    """Who is told about findings: the user's function, and the trackers that have alerts."""
    listeners: list[Listener] = [config.on_finding] if config.on_finding is not None else []
    if config.alerts:
        alerts = [writer.alerts for writer in writers if isinstance(writer, HasAlerts)]
        listeners += [functools.partial(_send, one) for one in alerts]
    return listeners


def _send(alerts: Alerts, finding: Finding) -> None:
    title = f"{finding.rule.replace('_', ' ')} at step {finding.step:,}"
    text = f"{finding.summary}. {finding.advice} ({finding.docs})"
    alerts.send(title, text, is_severe=finding.severity == "severe")
