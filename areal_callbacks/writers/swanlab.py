"""SwanLab: scalars, an expert-load heat map and single experts, in a run of our own or as a guest in the host's."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from areal_callbacks.config import SwanlabConfig
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.writers.expert_tables import ExpertScalars, LoadsBetweenTables, heat_maps
from areal_callbacks.writers.redact import redact
from areal_callbacks.writers.scalars import RisingStep, plain_scalars

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run

# Of writers that are at work: what one logger has opened is not another's to join.
_own_runs: set[int] = set()

_FOLDER_VARIABLES = ("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR")


class SwanlabWriter:
    """Logs every export at its step, with a heat map of the expert loads per stack.

    A run that is open already in this process is used and stays open; otherwise one is begun, and finished at the end.
    Nobody is ever asked to log in: without a key, a connection or the local dashboard, the run is kept offline, with
    one message.

    Args:
        config: mode (None: what ``SWANLAB_MODE`` and SwanLab's settings say), project, name, workspace, logdir.
        project: used unless ``config`` names one.
        name: of the run, unless ``config`` names it; None: the name of the :class:`Run`.
        table_every: exports from one heat map to the next, which shows the counts since.
        per_expert_scalars: two series per expert; ``"auto"``: up to 1,024 series.
    """

    def __init__(
        self,
        config: SwanlabConfig | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        table_every: int = 1,
        per_expert_scalars: bool | Literal["auto"] = "auto",
    ) -> None:
        self._config = config or SwanlabConfig()
        self._project = self._config.project or project
        self._name = self._config.name or name
        self._experts = _Experts(table_every, per_expert_scalars)
        self._steps = RisingStep()
        self._report: Path | None = None
        self._run: Any = None
        self._owner = False

    def open(self, run: Run) -> None:
        """Begin a run, unless there is one."""
        self._report = run.report
        self._run = current_swanlab_run()
        if id(self._run) in _own_runs:
            raise RuntimeError("another logger has a run open, and SwanLab has one per process")
        if self._run is None:
            self._run = self._begin(run)
            self._owner = True
            _own_runs.add(id(self._run))

    def write(self, export: Export) -> None:
        """One log call. SwanLab keeps one value per key and step: an export at a used step takes the next free one."""
        row: dict[str, Any] = plain_scalars({**export.host, **export.metrics})
        step = self._steps.after(export.step)
        if step != export.step:
            row["global_step"] = int(export.step)
        self._run.log({**row, **self._experts.of(export)}, step=step)

    def close(self) -> None:
        """Hand over the report, if there is one, and finish the run, if it is ours."""
        if not self._owner:
            return
        self._owner = False
        _own_runs.discard(id(self._run))
        try:
            if self._report is not None and self._report.exists():
                import swanlab

                self._run.log({"report": swanlab.Html(str(self._report))}, step=self._steps.after(0))
        finally:
            self._run.finish()

    def _begin(self, run: Run) -> Any:
        import swanlab

        arguments: dict[str, Any] = {
            "project": self._project,
            "workspace": self._config.workspace,
            "name": self._name or run.name or None,
            "log_dir": self._folder(run),
            "config": redact(run.config),
            "settings": swanlab.Settings(interactive=False),
        }
        mode = _mode(self._config.mode)
        try:
            return swanlab.init(mode=mode, **arguments)
        except Exception as error:
            if mode not in ("online", "local"):
                raise
            _report_offline(f"{type(error).__name__}: {error}")
            return swanlab.init(mode="offline", **arguments)

    def _folder(self, run: Run) -> str | None:
        if self._config.logdir is not None:
            return self._config.logdir
        return None if any(name in os.environ for name in _FOLDER_VARIABLES) else str(run.output_dir / "swanlog")


class SwanlabGuest:
    """Adds the expert loads to the host's run at the step that the host is about to log, and at last the report.

    Args:
        run: returns the host's run, when the first export is written.
        table_every: exports from one heat map to the next, which shows the counts since.
        per_expert_scalars: two series per expert; ``"auto"``: up to 1,024 series.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        *,
        table_every: int = 1,
        per_expert_scalars: bool | Literal["auto"] = "auto",
    ) -> None:
        self._find_run = run
        self._run: Any = None
        self._report: Path | None = None
        self._last = 0
        self._experts = _Experts(table_every, per_expert_scalars)

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        self._report = run.report
        self._run = self._find_run()
        if self._run is None:
            raise RuntimeError("the host has no SwanLab run")

    def write(self, export: Export) -> None:
        """The heat map, if one is due, and the single experts."""
        self._last = int(export.step)
        row = self._experts.of(export)
        if row:
            self._run.log(row, step=self._last)

    def close(self) -> None:
        """Hand over the report, if there is one; the run stays open: it is the host's."""
        if self._run is not None and self._report is not None and self._report.exists():
            import swanlab

            self._run.log({"report": swanlab.Html(str(self._report))}, step=self._last)


class _Experts:
    """The expert loads of an export as SwanLab shows them."""

    def __init__(self, table_every: int, per_expert_scalars: bool | Literal["auto"]) -> None:
        self._loads = LoadsBetweenTables(table_every)
        self._scalars = ExpertScalars(per_expert_scalars, "SwanLab")

    def of(self, export: Export) -> dict[str, Any]:
        row: dict[str, Any] = dict(self._scalars.of(export.expert_loads))
        loads = self._loads.add(export.expert_loads)
        if loads is not None:
            import swanlab

            row |= {key: swanlab.ECharts(chart) for key, chart in heat_maps(loads).items()}
        return row


def current_swanlab_run() -> Any:
    """The run that is open in this process, or None."""
    import swanlab

    return swanlab.get_run() if swanlab.has_run() else None


def _mode(wanted: str | None) -> str:
    """The ``mode`` argument of ``swanlab.init``, which asks at the terminal where it is online without a key."""
    import swanlab

    settings = swanlab.Settings(interactive=False)
    mode = {"cloud": "online"}.get(wanted or "", wanted) or str(settings.mode)
    if mode == "online" and not settings.api_key:
        _report_offline("no API key is configured")
        return "offline"
    if mode == "local" and find_spec("swanboard") is None:
        _report_offline("mode local needs its dashboard: pip install 'swanlab[dashboard]'")
        return "offline"
    return mode


def _report_offline(problem: str) -> None:
    report_once("swanlab:offline", f"SwanLab stays offline, `swanlab sync` uploads the run later: {problem}")
