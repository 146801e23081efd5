"""Runs in trackers: those that a host has opened, and our own, which are kept offline where no server answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.writers.redact import REDACTED

if TYPE_CHECKING:
    from areal_callbacks.core.types import Run


def _always() -> bool:
    return True


@dataclass(frozen=True)
class HostRun:
    """A run that a host has opened in a tracker, and how the host logs its step there.

    Attributes:
        find: returns the client's object of the run, or None; called when the first export is written. None: the run
            that is open in this process.
        step_key: the key under which the host logs its step, e.g. ``train/global_step``; None for a host that passes
            ``step=`` in its own log calls.
        passes_step: for a host without such a key, whether its coming log call really passes the step.
    """

    find: Callable[[], Any] | None = None
    step_key: str | None = None
    passes_step: Callable[[], bool] = _always

    def open(self, kind: str, find_current: Callable[[], Any] = lambda: None) -> Any:
        """The client's object of the run.

        Args:
            kind: what it is called in the message.
            find_current: returns the run that is open in this process, or None.

        Raises:
            RuntimeError: the host has none.
        """
        run = (self.find or find_current)()
        if run is None:
            raise RuntimeError(f"the host has no {kind}")
        return run


class TrackerRun:
    """A run in a tracker, ours or the host's, which takes the report when it ends.

    Args:
        client: the client's object of the run, with ``log`` and ``finish``.
        run: ours, which knows its report.
        html: makes the client's HTML object of a path.
    """

    def __init__(self, client: Any, run: Run, html: Callable[[str], Any]) -> None:
        self.client = client
        self._run = run
        self._html = html

    def log(self, row: Mapping[str, Any], **arguments: Any) -> None:
        """One log call; ``arguments`` are the client's."""
        self.client.log(dict(row), **arguments)

    def alert(self, title: str, text: str, level: Any) -> None:
        """Tell the people who follow the run; ``level`` is the client's."""
        self.client.alert(title=title, text=text, level=level)

    def log_report(self, **arguments: Any) -> None:
        """Add the report, if there is one."""
        report = self._run.finished_report
        if report is not None:
            self.log({"report": self._html(str(report))}, **arguments)

    def finish(self, **arguments: Any) -> None:
        """Add the report and end the run; for a run of our own."""
        try:
            self.log_report(**arguments)
        finally:
            self.client.finish()


class Alerts:
    """Alerts for a run, which may not be open yet.

    Args:
        levels: the client's levels of a warning and of what is severe; called once the client is imported.
    """

    def __init__(self, levels: Callable[[], tuple[Any, Any]]) -> None:
        self._levels = levels
        self._waiting: list[tuple[str, str, bool]] = []
        self._run: TrackerRun | None = None

    def begin(self, run: TrackerRun) -> None:
        """The run is open: send what has waited."""
        self._run = run
        waiting, self._waiting = self._waiting, []
        for title, text, is_severe in waiting:
            self.send(title, text, is_severe=is_severe)

    def send(self, title: str, text: str, *, is_severe: bool) -> None:
        """One alert.

        Args:
            title: at most 64 characters, which W&B takes.
            text: of any length.
            is_severe: decides its level.
        """
        if self._run is None:
            self._waiting.append((title, text, is_severe))
        else:
            self._run.alert(title, text, self._levels()[is_severe])


@runtime_checkable
class HasAlerts(Protocol):
    """A writer whose tracker has alerts."""

    alerts: Alerts


class OfflineFallback(NamedTuple):
    """What happens to a run that needs a server and does not reach it: it is kept offline, with one message.

    Attributes:
        tracker: its name in the configuration.
        notice: says where the run stays and how to upload it later.
    """

    tracker: str
    notice: str

    def begin(self, online: Callable[[], Any], offline: Callable[[], Any], secret: str | None = None) -> Any:
        """The run that ``online`` begins, or that ``offline`` begins if it raises; a message never shows the secret."""
        try:
            return online()
        except Exception as error:  # noqa: BLE001 - clients raise errors of their own for a missing connection
            problem = f"{type(error).__name__}: {error}"
            self.report(problem.replace(secret.strip(), REDACTED) if secret and secret.strip() else problem)
            return offline()

    def report(self, problem: str) -> None:
        """Say once why the run is kept offline."""
        report_once(f"{self.tracker}:offline", f"{self.notice}: {problem}")
