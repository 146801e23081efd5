"""SwanLab: scalars, an expert-load heat map and single experts, in a run of our own or as a guest in the host's."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import SwanlabConfig
from areal_callbacks.core.file_names import SWANLAB_FOLDER
from areal_callbacks.writers.expert_heat_maps import draw_heat_maps
from areal_callbacks.writers.expert_rows import ExpertRows
from areal_callbacks.writers.redact import redact
from areal_callbacks.writers.scalars import RisingStep, as_plain_scalars
from areal_callbacks.writers.tracker_runs import HostRun, OfflineFallback, TrackerRun

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads
    from areal_callbacks.core.types import Export, Run

# Of open writers: a run that one logger has begun must not be used by another.
_own_runs: set[int] = set()

_FALLBACK = OfflineFallback("swanlab", "SwanLab stays offline, `swanlab sync` uploads the run later")
_FOLDER_VARIABLES = ("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR")
_NEED_A_SERVER = ("online", "local")


class SwanlabWriter:
    """Logs every export at its step, with a heat map of the expert loads per stack.

    A run that is open already in this process is used and stays open; otherwise one is begun, and finished at the end.
    No login prompt ever appears: without a key, a connection or the local dashboard, the run is kept offline, with one
    message.

    Args:
        config: mode (None: what ``SWANLAB_MODE`` and SwanLab's settings say), project, name (None: that of the
            :class:`Run`), workspace, logdir.
        balance: exports from one heat map to the next, which shows the counts since; whether single experts are shown.
    """

    def __init__(self, config: SwanlabConfig, balance: MoEBalanceConfig) -> None:
        self._config = config
        self._experts = ExpertRows(balance, "SwanLab", _draw)
        self._steps = RisingStep()
        self._run: TrackerRun | None = None
        self._owner = False

    def open(self, run: Run) -> None:
        """Begin a run, unless there is one; RuntimeError if that is another logger's: SwanLab has one per process."""
        client = find_swanlab_run()
        if id(client) in _own_runs:
            raise RuntimeError("another logger has a run open, and SwanLab has one per process")
        if client is None:
            client = self._begin(run)
            self._owner = True
            _own_runs.add(id(client))
        self._run = _log_into(client, run)

    def write(self, export: Export) -> None:
        """One log call. SwanLab keeps one value per key and step: an export at a used step takes the next free one."""
        if self._run is None:
            return
        row: dict[str, Any] = as_plain_scalars({**export.host, **export.metrics})
        step = self._steps.after(export.step)
        if step != export.step:
            row["global_step"] = int(export.step)
        self._run.log({**row, **self._experts.add(export.expert_loads, export.expert_series)}, step=step)

    def close(self) -> None:
        """Hand over the report, if there is one, and finish the run, if it is ours; again does nothing."""
        run, self._run = self._run, None
        if run is not None and self._owner:
            _own_runs.discard(id(run.client))
            run.finish(step=self._steps.after(0))

    def _begin(self, run: Run) -> Any:
        import swanlab

        begin = partial(
            swanlab.init,
            project=self._config.project,
            workspace=self._config.workspace,
            name=self._config.name or run.name or None,
            log_dir=self._choose_folder(run),
            config=redact({**run.config, **(self._config.config or {})}),
        )
        mode = _choose_mode(self._config)
        plain = partial(begin, settings=swanlab.Settings(interactive=False))
        if mode in _NEED_A_SERVER:

            def online() -> Any:
                return begin(mode=mode, settings=swanlab.Settings(interactive=False, **_list_credentials(self._config)))

            return _FALLBACK.begin(online, partial(plain, mode="offline"), self._config.api_key)
        return plain(mode=mode)

    def _choose_folder(self, run: Run) -> str | None:
        if self._config.logdir is not None:
            return self._config.logdir
        return None if any(name in os.environ for name in _FOLDER_VARIABLES) else str(run.output_dir / SWANLAB_FOLDER)


class SwanlabGuest:
    """Adds the expert loads to the host's run at the step that the host is about to log, and at last the report.

    Args:
        host: finds the host's run.
        balance: exports from one heat map to the next, which shows the counts since; whether single experts are shown.
    """

    def __init__(self, host: HostRun, balance: MoEBalanceConfig) -> None:
        self._host = host
        self._experts = ExpertRows(balance, "SwanLab", _draw)
        self._run: TrackerRun | None = None
        self._last_step = 0

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        self._run = _log_into(self._host.open("SwanLab run", find_swanlab_run), run)

    def write(self, export: Export) -> None:
        """The heat map, if one is due, and the single experts."""
        self._last_step = int(export.step)
        row = self._experts.add(export.expert_loads)
        if row and self._run is not None:
            self._run.log(row, step=self._last_step)

    def close(self) -> None:
        """Hand over the report, if there is one; the run stays open: it is the host's."""
        if self._run is not None:
            self._run.log_report(step=self._last_step)


def find_swanlab_run() -> Any:
    """The run that is open in this process, or None."""
    import swanlab

    return swanlab.get_run() if swanlab.has_run() else None


def _log_into(client: Any, run: Run) -> TrackerRun:
    import swanlab

    return TrackerRun(client, run, swanlab.Html)


def _draw(loads: ExpertLoads) -> dict[str, Any]:
    import swanlab

    return {key: swanlab.ECharts(chart) for key, chart in draw_heat_maps(loads).items()}


def _list_credentials(config: SwanlabConfig) -> dict[str, str]:
    """For ``swanlab.Settings``; ``swanlab.login`` would write the key into the home folder."""
    return {"api_key": str(config.api_key)} if config.api_key else {}


def _choose_mode(config: SwanlabConfig) -> str:
    """The ``mode`` argument of ``swanlab.init``, which asks at the terminal where it is online without a key."""
    import swanlab

    settings = swanlab.Settings(interactive=False)
    mode = {"cloud": "online"}.get(config.mode or "", config.mode) or str(settings.mode)
    if mode == "online" and not (config.api_key or settings.api_key):
        _FALLBACK.report("no API key is configured")
        return "offline"
    if mode == "local" and find_spec("swanboard") is None:
        _FALLBACK.report("mode local needs its dashboard: pip install 'swanlab[dashboard]'")
        return "offline"
    return mode
