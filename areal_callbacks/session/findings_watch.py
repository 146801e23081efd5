"""Looks for findings while a run goes on, and tells each of them once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.findings import Finding, find
from areal_callbacks.findings.lines import list_lines
from areal_callbacks.findings.recent import RecentHistory
from areal_callbacks.safety.door import attempt

_SHARE = 0.01
_MOST_COUNTS = 1 << 16
"""Of an export with more, the loads are not kept; its scalars are."""

Listener = Callable[[Finding], object]


class FindingsWatch:
    """A writer that keeps the last exports and judges them, on the background thread.

    Judging takes at most a hundredth of the time: after a judgement of c seconds, the next one comes 100 c later, and a
    last one at the end.

    Args:
        listeners: each is called once with every finding; one that raises is reported and left alone.
        clock: seconds.
    """

    def __init__(self, listeners: Sequence[Listener] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        self._listeners = listeners
        self._clock = clock
        self._history = RecentHistory()
        self._due = 0.0
        self._is_judged = True
        self._told: set[str] = set()
        self._found: list[Finding] = []

    @property
    def found(self) -> Sequence[Finding]:
        """What was wrong at the last look, severe findings first."""
        return self._found

    def list_lines(self) -> list[str]:
        """At most three lines about what was wrong at the last look."""
        return list_lines(self._found)

    def open(self, run: Run) -> None:
        """Nothing is needed."""

    def write(self, export: Export) -> None:
        """Keep an export; judge the run if that is due."""
        numbers = {str(key): float(value) for key, value in {**export.host, **export.metrics}.items()}
        self._history.add(export.step, numbers, _list_counts(export.expert_loads))
        self._is_judged = False
        if self._clock() >= self._due:
            self._judge()

    def close(self) -> None:
        """Judge what came last."""
        if not self._is_judged:
            self._judge()

    def _judge(self) -> None:
        began = self._clock()
        self._found, self._is_judged = find(self._history), True
        now = self._clock()
        self._due = now + (now - began) / _SHARE
        for finding in self._found:
            if finding.subject not in self._told:
                self._told.add(finding.subject)
                self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        for listener in self._listeners:
            attempt(f"findings:{listener!r}", "a finding could not be handed on", listener, finding)


def _list_counts(loads: ExpertLoads | None) -> dict[tuple[str, int], list[int]]:
    layers = loads or ()
    if sum(len(layer.counts) for layer in layers) > _MOST_COUNTS:
        return {}
    return {(layer.stack, layer.layer): layer.counts.tolist() for layer in layers}
