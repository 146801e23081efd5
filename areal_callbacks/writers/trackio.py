"""Trackio: scalars, expert-load pictures and single experts, in a run of our own or as a guest in the host's."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import TrackioConfig
from areal_callbacks.core.names import HOTTEST_EXPERTS
from areal_callbacks.safety.door import Call
from areal_callbacks.safety.patches import Patches
from areal_callbacks.writers.expert_images import draw_expert_loads, enlarge
from areal_callbacks.writers.expert_rows import ExpertRows
from areal_callbacks.writers.expert_tables import find_hottest_experts
from areal_callbacks.writers.redact import redact
from areal_callbacks.writers.scalars import as_plain_scalars
from areal_callbacks.writers.tracker_runs import Alerts, HostRun, OfflineFallback, TrackerRun

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads
    from areal_callbacks.core.types import Export, Run

_FALLBACK = OfflineFallback("trackio", "Trackio stays on this machine, `trackio sync` uploads it later")
_QUIET = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}


class TrackioWriter:
    """Logs every export as one row of a Trackio run of our own, with a picture of the loads and the hottest experts.

    Without ``space_id`` nothing leaves this machine. A Space that cannot be reached leaves the run on this machine,
    with one message.

    Args:
        config: project, name (None: that of the :class:`Run`), group, space_id.
        balance: exports from one picture to the next, which shows the counts since; whether single experts are shown.
    """

    def __init__(self, config: TrackioConfig, balance: MoEBalanceConfig) -> None:
        self._config = config
        self._experts = ExpertRows(balance, "Trackio", _draw)
        self._run: TrackerRun | None = None
        self.alerts = Alerts(_alert_levels)
        self._last_step = 0

    def open(self, run: Run) -> None:
        """Begin a run."""
        self._run = _log_into(self._begin(run), run)
        self.alerts.begin(self._run)

    def write(self, export: Export) -> None:
        """One row."""
        if self._run is not None:
            row = as_plain_scalars({**export.host, **export.metrics})
            self._last_step = int(export.step)
            self._run.log({**row, **self._experts.add(export.expert_loads, export.expert_series)}, step=self._last_step)

    def close(self) -> None:
        """Hand over the report, if there is one, and finish the run; again does nothing."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(step=self._last_step)

    def _begin(self, run: Run) -> Any:
        import trackio

        known = inspect.signature(trackio.init).parameters
        begin = partial(
            trackio.init,
            self._config.project or "areal",
            name=self._config.name or run.name or None,
            group=self._config.group,
            config=redact(run.config),
            **{name: value for name, value in _QUIET.items() if name in known},
        )
        if self._config.space_id is None or self._config.mode == "local":
            return begin()
        return _FALLBACK.begin(partial(begin, space_id=self._config.space_id), begin)


class TrackioGuest:
    """Adds the expert loads to the row that the host is about to log into its own run.

    A log call of our own would make a row of its own and move the host's step counter, so what is to be added waits for
    the host's next log call. Only the report, at the end, gets a row of its own at the last step.

    Args:
        host: finds the host's run.
        balance: exports from one picture to the next, which shows the counts since; whether single experts are shown.
    """

    def __init__(self, host: HostRun, balance: MoEBalanceConfig) -> None:
        self._host = host
        self._experts = ExpertRows(balance, "Trackio", _draw)
        self._patches = Patches("trackio")
        self._waiting: dict[str, Any] = {}
        self._run: TrackerRun | None = None
        self.alerts = Alerts(_alert_levels)
        self._last_step = 0

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        client = self._host.open("Trackio run", find_trackio_run)
        self._patches.wrap(client, "log", self._around_log)
        self._run = _log_into(client, run)
        self.alerts.begin(self._run)

    def write(self, export: Export) -> None:
        """Keep what the host's next log call takes along."""
        self._last_step = int(export.step)
        self._waiting |= self._experts.add(export.expert_loads)

    def close(self) -> None:
        """Unwrap the host's run, which stays open, and hand over the report, if there is one."""
        self._patches.undo()
        if self._run is not None:
            self._run.log_report(step=self._last_step)

    def _around_log(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Generator[Call]:
        waiting, self._waiting = self._waiting, {}
        yield Call(({**waiting, **metrics}, *args), kwargs)


def find_trackio_run() -> Any:
    """The run that is open in this thread or coroutine, or None."""
    from trackio import context_vars

    return context_vars.current_run.get()


def _log_into(client: Any, run: Run) -> TrackerRun:
    import trackio

    return TrackerRun(client, run, trackio.Html)


def _draw(loads: ExpertLoads) -> dict[str, Any]:
    import trackio

    images = {
        key: trackio.Image(enlarge(image).numpy(), caption="rows: layers, columns: experts")
        for key, image in draw_expert_loads(loads).items()
    }
    columns, rows = find_hottest_experts(loads)
    return {**images, HOTTEST_EXPERTS: trackio.Table(columns=columns, data=rows)}


def _alert_levels() -> tuple[Any, Any]:
    import trackio

    return trackio.AlertLevel.WARN, trackio.AlertLevel.ERROR
