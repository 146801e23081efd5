"""The cumulative totals of a run, in a small file beside checkpoints that have no room for them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error


class SavedTotals:
    """A JSON file that holds what ``MetricsSession.state_dict`` returned, or that of every saved iteration.

    A file that cannot be read or written is reported once; training and its checkpoints go on without it.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def write(self, state: Mapping[str, Any] | None, iteration: int | None = None) -> None:
        """Keep a state, whole or not at all; for one rank only.

        Args:
            state: of the session; None, which a failure left, is not written.
            iteration: of a file that holds several: it replaces what an earlier attempt left there.
        """
        if state is None:
            return
        try:
            self._replace(state if iteration is None else {**self._read(), str(iteration): state})
        except (OSError, TypeError, ValueError, RecursionError) as error:
            report_once(f"totals:{self._path}", f"the totals could not be saved in {self._path}: {tell_error(error)}")

    def read(self, iteration: int | None = None) -> dict[str, Any] | None:
        """What was written; None, with one message, where it is not known."""
        try:
            states = self._read()
        except (OSError, ValueError, RecursionError) as error:
            report_once(f"totals:{self._path}", f"the totals could not be read from {self._path}: {tell_error(error)}")
            return None
        state = states or None if iteration is None else states.get(str(iteration))
        if state is None:
            which = "" if iteration is None else f" of iteration {iteration}"
            report_once(f"totals:{self._path}", f"{self._path} has no totals{which}: they start at zero")
        return state

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        states = json.loads(self._path.read_text())
        if not isinstance(states, dict):
            raise ValueError("expected a mapping")  # noqa: TRY004 - as for any malformed file
        return states

    def _replace(self, states: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(states))
        os.replace(unfinished, self._path)
