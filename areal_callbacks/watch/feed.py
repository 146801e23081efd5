"""The data of the page, built anew whenever the runs have written and somebody looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from areal_callbacks.report.page import dump_inert_json, render
from areal_callbacks.report.payload import make_payload
from areal_callbacks.watch.followed_run import FollowedRun

INTERVAL = 1.0
"""Seconds between two looks at the files."""
_REST = 9.0
"""Rest after a look, in multiples of what it took: a tenth of one core at most, beside the training it may share."""


class Feed:
    """Follows runs while there are listeners.

    Args:
        runs: to show, together if there are several.
        interval: seconds between two looks.

    Attributes:
        version: of the data, counted from 1; 0 before they were built.
        data: the page's data as JSON.
        problem: why newer data could not be read, or "".
    """

    def __init__(self, runs: Sequence[FollowedRun], interval: float = INTERVAL) -> None:
        self.version = 0
        self.data = ""
        self.problem = ""
        self._runs = runs
        self._interval = interval
        self._payload: dict[str, Any] = make_payload([])
        self._listeners = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def start(self) -> None:
        """Follow on a thread of its own, until :meth:`end`."""
        threading.Thread(target=self._follow, name="areal_callbacks watch", daemon=True).start()

    def end(self) -> None:
        """Follow no longer; the listeners end too."""
        self._ended.set()

    @property
    def is_over(self) -> bool:
        """Whether :meth:`end` was called."""
        return self._ended.is_set()

    def add_listener(self) -> None:
        """Somebody looks."""
        self._listeners += 1

    def remove_listener(self) -> None:
        """One looks no longer."""
        self._listeners -= 1

    def refresh(self) -> None:
        """Read what is new and, if there is anything, build the next version."""
        with self._lock:
            try:
                changed = [run.update() for run in self._runs]
                if any(changed) or self.version == 0:
                    self._build()
                self.problem = ""
            except (ValueError, OSError) as error:
                self.problem = str(error)

    def render_page(self) -> str:
        """The report as it is by now, which then listens for more."""
        self.refresh()
        with self._lock:
            title = " · ".join(run.name for run in self._runs)
            return render(self._payload, f"{title} · live report", live=max(1, self.version))

    def _build(self) -> None:
        self._payload = make_payload([run.history() for run in self._runs])
        self.data = dump_inert_json(self._payload)
        self.version += 1

    def _follow(self) -> None:
        rest = self._interval
        while not self._ended.wait(rest):
            began = time.monotonic()
            if self._listeners > 0:
                self.refresh()
            rest = max(self._interval, _REST * (time.monotonic() - began))
