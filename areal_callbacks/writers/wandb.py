"""Weights & Biases: scalars and the expert-load table, in a run of our own or as a guest in the host's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_callbacks.config import WandbConfig
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.writers.expert_tables import TABLE, LoadsBetweenTables, Rows, expert_table
from areal_callbacks.writers.redact import redact
from areal_callbacks.writers.scalars import RisingStep, plain_scalars

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run

# Of writers that are at work: what one logger has opened is not another's to join.
_own_runs: set[str] = set()

_SENT_TO_SERVER = ("online", "shared")
_OLD_WORDS = {"dryrun": "offline", "run": "online"}


class WandbWriter:
    """Logs every export as one row of a W&B run, with the expert loads as a Table in the same row.

    A run that is open already in this process is used and stays open; otherwise one is begun, and finished at the end.
    Nobody is ever asked to log in: without a key, or without a connection, the run is kept offline, with one message.

    Args:
        config: mode (None: what ``WANDB_MODE`` and W&B's settings say), project, entity, name, ...
        project: used unless ``config`` names one.
        name: of the run, unless ``config`` names it; None: the name of the :class:`Run`.
        table_every: exports from one table to the next, which holds the counts since.
    """

    def __init__(
        self,
        config: WandbConfig | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        table_every: int = 1,
    ) -> None:
        self._config = config or WandbConfig()
        self._project = self._config.project or project
        self._name = self._config.name or name
        self._loads = LoadsBetweenTables(table_every)
        self._steps = RisingStep()
        self._report: Path | None = None
        self._run: Any = None
        self._owner = False

    def open(self, run: Run) -> None:
        """Begin a run, unless there is one."""
        self._report = run.report
        self._run = current_wandb_run()
        if self._run is None or self._run.id in _own_runs:
            self._run = self._begin(run)
            self._owner = True
            _own_runs.add(self._run.id)

    def write(self, export: Export) -> None:
        """One row. W&B drops what comes at an earlier step, so such an export takes the next free one."""
        row: dict[str, Any] = plain_scalars({**export.host, **export.metrics})
        step = self._steps.after(export.step) if self._owner else None
        if step != export.step:
            row["global_step"] = int(export.step)
        _log(self._run, row, self._loads.add(export.expert_loads), step=step)

    def close(self) -> None:
        """Hand over the report, if there is one, and finish the run, if it is ours."""
        if not self._owner:
            return
        self._owner = False
        _own_runs.discard(self._run.id)
        try:
            if self._report is not None and self._report.exists():
                import wandb

                self._run.log({"report": wandb.Html(str(self._report), inject=False)})
        finally:
            self._run.finish()

    def _begin(self, run: Run) -> Any:
        import wandb

        arguments: dict[str, Any] = {
            "project": self._project,
            "entity": self._config.entity,
            "name": self._name or run.name or None,
            "group": self._config.group,
            "job_type": self._config.job_type,
            "notes": self._config.notes,
            "tags": list(self._config.tags) or None,
            "config": redact(run.config),
            "dir": None if "WANDB_DIR" in os.environ else str(run.output_dir),
            # By default W&B gives back the run that is open.
            "reinit": "create_new" if current_wandb_run() is not None else None,
        }
        mode, online = _mode(self._config.mode)
        try:
            return wandb.init(mode=mode, **arguments)
        except Exception as error:
            if not online:
                raise
            _report_offline(f"{type(error).__name__}: {error}")
            return wandb.init(mode="offline", **arguments)


class WandbGuest:
    """Adds the expert-load Table to the history row that the host is about to log into its own run, at last the report.

    Nothing is committed and no step is moved: the host's following log call, or the end of its run, does both.

    Args:
        run: returns the host's run, when the first export is written.
        step_key: the key under which the host logs its step, e.g. ``train/global_step``; None for a host that passes
            ``step=`` in its own log calls.
        gives_step: for such a host, whether the coming log call really passes it.
        table_every: exports from one table to the next, which holds the counts since.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        *,
        step_key: str | None,
        gives_step: Callable[[], bool] = lambda: True,
        table_every: int = 1,
    ) -> None:
        self._find_run = run
        self._run: Any = None
        self._report: Path | None = None
        self._step_key = step_key
        self._gives_step = gives_step
        self._loads = LoadsBetweenTables(table_every)

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        self._report = run.report
        self._run = self._find_run()
        if self._run is None:
            raise RuntimeError("the host has no W&B run")

    def write(self, export: Export) -> None:
        """The table, if one is due."""
        loads = self._loads.add(export.expert_loads)
        if loads is None:
            return
        step = int(export.step)
        if self._step_key is None and self._gives_step():
            _log(self._run, {}, loads, step=step)
        else:
            _log(self._run, {} if self._step_key is None else {self._step_key: step}, loads, commit=False)

    def close(self) -> None:
        """Hand over the report, if there is one; the run stays open: it is the host's."""
        if self._run is not None and self._report is not None and self._report.exists():
            import wandb

            self._run.log({"report": wandb.Html(str(self._report), inject=False)}, commit=False)


def current_wandb_run() -> Any:
    """The run that is open in this process, or None."""
    import wandb

    return wandb.run


def _mode(wanted: str | None) -> tuple[Any, bool]:
    """The ``mode`` argument of ``wandb.init``, and whether it needs a server."""
    import wandb

    # W&B reads the environment once per process, which may be over.
    mode = wanted or os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
    mode = _OLD_WORDS.get(mode, mode)
    if mode not in _SENT_TO_SERVER:
        return mode, False
    problem = _credentials_problem()
    if problem is None:
        return mode, True
    _report_offline(problem)
    return "offline", False


def _credentials_problem() -> str | None:
    """Why nobody is logged in; None if somebody is. ``wandb.init`` would ask at the terminal, and wait."""
    import wandb

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return None
    try:
        try:
            found = wandb.login(prompt=False, verify=False)
        except TypeError:  # before these arguments existed
            found = bool(wandb.api.api_key)
    except Exception as error:  # noqa: BLE001 - a malformed key
        return f"{type(error).__name__}: {error}"
    return None if found else "no API key is configured"


def _report_offline(problem: str) -> None:
    report_once("wandb:offline", f"W&B stays offline, `wandb sync` uploads the run later: {problem}")


def _log(run: Any, row: dict[str, Any], loads: Any, **arguments: Any) -> None:
    if loads is None:
        run.log(row, **arguments)
        return
    table = expert_table(loads)
    with _whole_tables(len(table.rows)):
        run.log({**row, TABLE: _wandb_table(table)}, **arguments)


def _wandb_table(table: Rows) -> Any:
    """Checking the types of thousands of rows one by one takes a thousand times as long as logging them."""
    import wandb

    try:
        fast = wandb.Table(columns=table.columns, data=table.rows[:1])
        fast.data = table.rows
    except Exception:  # noqa: BLE001 - another version of Table
        return wandb.Table(columns=table.columns, data=table.rows)
    return fast


@contextlib.contextmanager
def _whole_tables(rows: int) -> Iterator[None]:
    """W&B cuts a table file at MAX_ROWS without a word: in layer order the last layers go."""
    import wandb

    limit = wandb.Table.MAX_ROWS
    wandb.Table.MAX_ROWS = max(limit, rows)
    try:
        yield
    finally:
        wandb.Table.MAX_ROWS = limit
