"""One run that is still written, as the report's history."""

from __future__ import annotations

from pathlib import Path

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.report.history import History, HistoryReader
from areal_callbacks.report.locate import NoMetricsError, find_metrics, name_runs
from areal_callbacks.watch.followed_file import FollowedFile
from areal_callbacks.writers.metrics_file import PackedRecord
from areal_callbacks.writers.trainings import TrainingCounter


class FollowedRun:
    """The newest training in a metrics.jsonl, which need not exist yet.

    Args:
        path: as for :func:`~areal_callbacks.report.find_metrics`.
        name: for people; that of its folder if None.

    Raises:
        ValueError: ``path`` holds several runs.
    """

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self._path = Path(path)
        self._file: FollowedFile | None = None
        self.name = name or name_runs([self._path / METRICS_FILE])[0]
        self._begin()
        self._find()

    def update(self) -> bool:
        """Read what was written since the last call; whether there was anything.

        Raises:
            ValueError: a line is corrupt.
        """
        file = self._find()
        if file is None:
            return False
        changed = file.is_another()
        if changed:
            file.begin_again()
            self._begin()
        for record in file.read_new():
            self._add(record)
            changed = True
        return changed

    def history(self) -> History:
        """What was read so far."""
        return self._reader.history(self.name)

    def _begin(self) -> None:
        self._counter = TrainingCounter[PackedRecord]()
        self._training = 0
        self._reader = HistoryReader()

    def _add(self, record: PackedRecord) -> None:
        for training, numbered in self._counter.add(record, record):
            if training != self._training:
                self._training, self._reader = training, HistoryReader()
            self._reader.add(numbered)

    def _find(self) -> FollowedFile | None:
        if self._file is None:
            try:
                self._file = FollowedFile(find_metrics(self._path))
            except NoMetricsError:
                return None
        return self._file
