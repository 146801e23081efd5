"""The expert-load Table of a W&B row: complete, and quick to log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from areal_callbacks.core.names import EXPERT_LOADS
from areal_callbacks.writers.expert_tables import Table, make_expert_table

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads
    from areal_callbacks.writers.tracker_runs import TrackerRun


def log_with_table(run: TrackerRun, row: Mapping[str, Any], loads: ExpertLoads | None, **arguments: Any) -> None:
    """One log call.

    Args:
        run: of W&B.
        row: what else it holds.
        loads: what the table shows; None for a row without a table.
        **arguments: of ``wandb.Run.log``.
    """
    if loads is None:
        run.log(row, **arguments)
        return
    table = make_expert_table(loads)
    with _raise_row_limit(len(table.rows)):
        run.log({**row, EXPERT_LOADS: _make_wandb_table(table)}, **arguments)


def _make_wandb_table(table: Table) -> Any:
    """Checking the types of thousands of rows one by one takes a thousand times as long as logging them."""
    import wandb

    try:
        fast = wandb.Table(columns=table.columns, data=table.rows[:1])
        fast.data = table.rows
    except Exception:  # noqa: BLE001 - another version of Table
        return wandb.Table(columns=table.columns, data=table.rows)
    return fast


@contextlib.contextmanager
def _raise_row_limit(rows: int) -> Iterator[None]:
    """W&B cuts a table file at MAX_ROWS without a message: in layer order the last layers would be missing."""
    import wandb

    limit = wandb.Table.MAX_ROWS
    wandb.Table.MAX_ROWS = max(limit, rows)
    try:
        yield
    finally:
        wandb.Table.MAX_ROWS = limit
