"""MLflow and Comet, as guests: the host logs the scalars, under our names; the report becomes a file of its run.

Expert loads stay in the report: a series per expert would be thousands of requests a step, and neither takes tables row
by row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_callbacks.core.file_names import REPORT_FILE

if TYPE_CHECKING:
    from areal_callbacks.config import MoEBalanceConfig
    from areal_callbacks.core.types import Export, Run
    from areal_callbacks.writers.tracker_runs import HostRun


class MlflowRun(NamedTuple):
    """A run in an MLflow store; files can be added to it even after it ended, as the HF Trainer ends it first."""

    client: Any
    run_id: str

    @classmethod
    def of(cls, found: Any) -> MlflowRun:
        """From an ``ActiveRun``, or from itself."""
        if isinstance(found, cls):
            return found
        from mlflow import MlflowClient

        return cls(MlflowClient(), found.info.run_id)

    def add_file(self, path: Path) -> None:
        """Make a file one of the run's artifacts."""
        self.client.log_artifact(self.run_id, str(path))


class MlflowGuest:
    """Adds the report to the host's MLflow run.

    Args:
        host: finds an ``ActiveRun`` or a :class:`MlflowRun`; by default the run that is active in this process.
        balance: nothing of it is used.
    """

    def __init__(self, host: HostRun, balance: MoEBalanceConfig) -> None:
        self._host = host
        self._run: Run | None = None
        self._target: MlflowRun | None = None

    def open(self, run: Run) -> None:
        """Find the host's run; RuntimeError without one."""
        self._run = run
        self._target = MlflowRun.of(self._host.open("MLflow run", _find_active_run))

    def write(self, export: Export) -> None:
        """Nothing: the host logs the scalars."""

    def close(self) -> None:
        """Hand over the report, if there is one."""
        report = self._run.finished_report if self._run is not None else None
        if report is not None and self._target is not None:
            self._target.add_file(report)


class CometGuest:
    """Adds the report to the host's Comet experiment.

    Args:
        host: finds the experiment; by default the one that is running in this process.
        balance: nothing of it is used.
    """

    def __init__(self, host: HostRun, balance: MoEBalanceConfig) -> None:
        self._host = host
        self._run: Run | None = None
        self._experiment: Any = None

    def open(self, run: Run) -> None:
        """Find the host's experiment; RuntimeError without one."""
        self._run = run
        self._experiment = self._host.open("Comet experiment", _find_running_experiment)

    def write(self, export: Export) -> None:
        """Nothing: the host logs the scalars."""

    def close(self) -> None:
        """Hand over the report, if there is one; the experiment stays open: it is the host's."""
        report = self._run.finished_report if self._run is not None else None
        if report is not None and self._experiment is not None:
            self._experiment.log_asset(str(report), file_name=REPORT_FILE)


def _find_active_run() -> Any:
    import mlflow

    return mlflow.active_run()


def _find_running_experiment() -> Any:
    import comet_ml

    return comet_ml.get_running_experiment()
