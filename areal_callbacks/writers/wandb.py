"""Weights & Biases: scalars and the expert-load table, in a run of our own or as a guest in the host's."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import WandbConfig
from areal_callbacks.writers.expert_rows import LoadsBetweenTables
from areal_callbacks.writers.redact import redact
from areal_callbacks.writers.scalars import RisingStep, as_plain_scalars
from areal_callbacks.writers.tracker_runs import Alerts, HostRun, OfflineFallback, TrackerRun
from areal_callbacks.writers.wandb_tables import log_with_table

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run

# Of open writers: a run that one logger has begun must not be used by another.
_own_runs: set[str] = set()

_FALLBACK = OfflineFallback("wandb", "W&B stays offline, `wandb sync` uploads the run later")
_NEED_A_SERVER = ("online", "shared")
_FORBIDDEN = re.compile(r"[/\\#?%:]")
_OLD_WORDS = {"dryrun": "offline", "run": "online"}


class WandbWriter:
    """Logs every export as one row of a W&B run, with the expert loads as a Table in the same row.

    A run that is open already in this process is used and stays open; otherwise one is begun, and finished at the end.
    No login prompt ever appears: without a key, or without a connection, the run is kept offline, with one message.

    Args:
        config: mode (None: what ``WANDB_MODE`` and W&B's settings say), project, entity, name (None: that of the
            :class:`Run`), ...; characters of an id that W&B does not allow become underscores.
        balance: exports from one table to the next, which holds the counts since.
    """

    def __init__(self, config: WandbConfig, balance: MoEBalanceConfig) -> None:
        self._config = config
        self._loads = LoadsBetweenTables(balance.expert_table_every)
        self._steps = RisingStep()
        self._run: TrackerRun | None = None
        self.alerts = Alerts(_alert_levels)
        self._owner = False

    def open(self, run: Run) -> None:
        """Begin a run, unless there is one."""
        client = find_wandb_run()
        if client is None or client.id in _own_runs:
            client = self._begin(run)
            self._owner = True
            _own_runs.add(client.id)
        self._run = _log_into(client, run)
        self.alerts.begin(self._run)

    def write(self, export: Export) -> None:
        """One row. W&B drops what comes at an earlier step, so such an export takes the next free one."""
        if self._run is None:
            return
        row: dict[str, Any] = as_plain_scalars({**export.host, **export.metrics})
        step = self._steps.after(export.step) if self._owner else None
        if step != export.step:
            row["global_step"] = int(export.step)
        log_with_table(self._run, row, self._loads.add(export.expert_loads), step=step)

    def close(self) -> None:
        """Hand over the report, if there is one, and finish the run, if it is ours; again does nothing."""
        run, self._run = self._run, None
        if run is not None and self._owner:
            _own_runs.discard(run.client.id)
            run.finish()

    def _begin(self, run: Run) -> Any:
        import wandb

        config = self._config
        begin = partial(
            wandb.init,
            project=config.project,
            entity=config.entity,
            name=config.name or run.name or None,
            group=config.group,
            job_type=config.job_type,
            notes=config.notes,
            tags=list(config.tags or ()) or None,
            config=redact({**run.config, **(config.config or {})}),
            dir=None if "WANDB_DIR" in os.environ else str(run.output_dir),
            id=_FORBIDDEN.sub("_", config.id) if config.id else None,
            # By default W&B gives back the run that is open.
            reinit="create_new" if find_wandb_run() is not None else None,
        )
        mode = _choose_mode(config)
        if mode in _NEED_A_SERVER:

            def online() -> Any:
                return begin(mode=mode, settings=_make_settings(config), resume="allow" if config.id else None)

            return _FALLBACK.begin(online, partial(begin, mode="offline"), config.wandb_api_key)
        return begin(mode=mode)


class WandbGuest:
    """Adds the expert-load Table to the history row that the host is about to log into its own run, at last the report.

    Nothing is committed and no step is moved: the host's following log call, or the end of its run, does both.

    Args:
        host: finds the host's run, and says how the host logs its step.
        balance: exports from one table to the next, which holds the counts since.
    """

    def __init__(self, host: HostRun, balance: MoEBalanceConfig) -> None:
        self._host = host
        self._loads = LoadsBetweenTables(balance.expert_table_every)
        self._run: TrackerRun | None = None
        self.alerts = Alerts(_alert_levels)

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        self._run = _log_into(self._host.open("W&B run", find_wandb_run), run)
        self.alerts.begin(self._run)

    def write(self, export: Export) -> None:
        """The table, if one is due."""
        loads, step = self._loads.add(export.expert_loads), int(export.step)
        if loads is None or self._run is None:
            return
        if self._host.step_key is not None:
            log_with_table(self._run, {self._host.step_key: step}, loads, commit=False)
        elif self._host.passes_step():
            log_with_table(self._run, {}, loads, step=step)
        else:
            log_with_table(self._run, {}, loads, commit=False)

    def close(self) -> None:
        """Hand over the report, if there is one; the run stays open: it is the host's."""
        if self._run is not None:
            self._run.log_report(commit=False)


def find_wandb_run() -> Any:
    """The run that is open in this process, or None."""
    import wandb

    return wandb.run


def _log_into(client: Any, run: Run) -> TrackerRun:
    import wandb

    return TrackerRun(client, run, partial(wandb.Html, inject=False))


def _choose_mode(config: WandbConfig) -> Any:
    """The ``mode`` argument of ``wandb.init``."""
    import wandb

    # W&B reads the environment once per process, which may have happened before WANDB_MODE was set.
    mode = config.mode or os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
    mode = _OLD_WORDS.get(mode, mode)
    problem = _find_credentials_problem() if mode in _NEED_A_SERVER and not config.wandb_api_key else None
    if problem is None:
        return mode
    _FALLBACK.report(problem)
    return "offline"


def _make_settings(config: WandbConfig) -> Any:
    """Server and key for one run; ``wandb.login`` would write the key into the home folder."""
    import wandb

    given = {"base_url": config.wandb_base_url, "api_key": config.wandb_api_key and str(config.wandb_api_key)}
    return wandb.Settings(**{name: value for name, value in given.items() if value})


def _find_credentials_problem() -> str | None:
    """Why there is no login; None if there is one. ``wandb.init`` would ask for it at the terminal, and wait."""
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


def _alert_levels() -> tuple[str, str]:
    return "WARN", "ERROR"
