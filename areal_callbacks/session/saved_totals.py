"""The cumulative totals of a run, in a small file beside checkpoints that have no room for them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_callbacks.safety.reporting import report_once

FILE_NAME = "areal_metrics_totals.json"


class SavedTotals:
    """``areal_metrics_totals.json``: iteration → what ``MetricsSession.state_dict`` returned there.

    A file that cannot be read or written is reported once; training and its checkpoints go on without it.

    Args:
        folder: of the checkpoints.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / FILE_NAME

    def write(self, iteration: int, state: Mapping[str, Any]) -> None:
        """Add the totals of an iteration, or replace those that an earlier attempt left; for one rank only."""
        try:
            states = {**self._states(), str(iteration): state}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self._path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(states))
            os.replace(unfinished, self._path)
        except (OSError, TypeError, ValueError) as error:
            report_once(f"totals:{self._path}", f"the totals could not be saved in {self._path}: {error!r}")

    def read(self, iteration: int) -> dict[str, Any] | None:
        """The totals at an iteration; None, with one message, where they are not known."""
        try:
            state = self._states().get(str(iteration))
        except (OSError, ValueError) as error:
            report_once(f"totals:{self._path}", f"the totals could not be read from {self._path}: {error!r}")
            return None
        if state is None:
            report_once(
                f"totals:{self._path}", f"{self._path} has no totals of iteration {iteration}: they start at zero"
            )
        return state

    def _states(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        states = json.loads(self._path.read_text())
        if not isinstance(states, dict):
            raise ValueError("expected a mapping of iterations")  # noqa: TRY004 - as for any malformed file
        return states
