"""Trackio: scalars, expert-load pictures and single experts, in a run of our own or as a guest in the host's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from areal_callbacks.config import TrackioConfig
from areal_callbacks.safety.door import Call
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.writers.expert_images import enlarged, expert_load_images
from areal_callbacks.writers.expert_tables import HOTTEST_TABLE, ExpertScalars, LoadsBetweenTables, hottest_experts
from areal_callbacks.writers.redact import redact
from areal_callbacks.writers.scalars import plain_scalars

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run


class TrackioWriter:
    """Logs every export as one row of a Trackio run of our own, with a picture of the loads and the hottest experts.

    Without ``space_id`` nothing leaves this machine. A Space that cannot be reached leaves the run on this machine,
    with one message.

    Args:
        config: project, name, group, space_id.
        project: used unless ``config`` names one.
        name: of the run, unless ``config`` names it; None: the name of the :class:`Run`.
        table_every: exports from one picture to the next, which shows the counts since.
        per_expert_scalars: two series per expert; ``"auto"``: up to 1,024 series.
    """

    def __init__(
        self,
        config: TrackioConfig | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        table_every: int = 1,
        per_expert_scalars: bool | Literal["auto"] = "auto",
    ) -> None:
        self._config = config or TrackioConfig()
        self._project = self._config.project or project or "areal"
        self._name = self._config.name or name
        self._experts = _Experts(table_every, per_expert_scalars)
        self._report: Path | None = None
        self._run: Any = None
        self._last = 0

    def open(self, run: Run) -> None:
        """Begin a run."""
        self._report = run.report
        self._run = self._begin(run)

    def write(self, export: Export) -> None:
        """One row."""
        row: dict[str, Any] = plain_scalars({**export.host, **export.metrics})
        self._last = int(export.step)
        self._run.log({**row, **self._experts.of(export)}, step=self._last)

    def close(self) -> None:
        """Hand over the report, if there is one, and finish the run."""
        if self._run is None:
            return
        run, self._run = self._run, None
        try:
            if self._report is not None and self._report.exists():
                import trackio

                run.log({"report": trackio.Html(str(self._report))}, step=self._last)
        finally:
            run.finish()

    def _begin(self, run: Run) -> Any:
        import trackio

        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        known = inspect.signature(trackio.init).parameters
        arguments: dict[str, Any] = {
            "name": self._name or run.name or None,
            "group": self._config.group,
            "config": redact(run.config),
            **{name: value for name, value in quiet.items() if name in known},
        }
        try:
            return trackio.init(self._project, space_id=self._config.space_id, **arguments)
        except Exception as error:
            if self._config.space_id is None:
                raise
            problem = f"{type(error).__name__}: {error}"
            report_once("trackio:offline", f"Trackio stays on this machine, `trackio sync` uploads it later: {problem}")
            return trackio.init(self._project, **arguments)


class TrackioGuest:
    """Adds the expert loads to the row that the host is about to log into its own run.

    A log call of our own would make a row of its own and move the host's step counter, so what is to be added waits for
    the host's next log call. Only the report, at the end, gets a row of its own at the last step.

    Args:
        run: returns the host's run, when the first export is written.
        table_every: exports from one picture to the next, which shows the counts since.
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
        self._experts = _Experts(table_every, per_expert_scalars)
        self._patches = Patches("trackio")
        self._waiting: dict[str, Any] = {}
        self._host: Any = None
        self._report: Path | None = None
        self._last = 0

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        self._report = run.report
        self._host = self._find_run()
        if self._host is None:
            raise RuntimeError("the host has no Trackio run")
        self._patches.wrap(self._host, "log", self._around_log)

    def write(self, export: Export) -> None:
        """What the host's next log call takes along."""
        self._last = int(export.step)
        self._waiting |= self._experts.of(export)

    def close(self) -> None:
        """Let go of the host's run, which stays open, and hand over the report, if there is one."""
        self._patches.undo()
        if self._host is not None and self._report is not None and self._report.exists():
            import trackio

            self._host.log({"report": trackio.Html(str(self._report))}, step=self._last)

    def _around_log(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Generator[Call]:
        waiting, self._waiting = self._waiting, {}
        yield Call(({**waiting, **metrics}, *args), kwargs)


class _Experts:
    """The expert loads of an export as Trackio shows them."""

    def __init__(self, table_every: int, per_expert_scalars: bool | Literal["auto"]) -> None:
        self._loads = LoadsBetweenTables(table_every)
        self._scalars = ExpertScalars(per_expert_scalars, "Trackio")

    def of(self, export: Export) -> dict[str, Any]:
        row: dict[str, Any] = dict(self._scalars.of(export.expert_loads))
        loads = self._loads.add(export.expert_loads)
        if loads is not None:
            import trackio

            for key, image in expert_load_images(loads).items():
                row[key] = trackio.Image(enlarged(image).numpy(), caption="rows: layers, columns: experts")
            columns, rows = hottest_experts(loads)
            row[HOTTEST_TABLE] = trackio.Table(columns=columns, data=rows)
        return row


def current_trackio_run() -> Any:
    """The run that is open in this thread or coroutine, or None."""
    from trackio import context_vars

    return context_vars.current_run.get()
