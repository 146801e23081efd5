"""Alerts of findings, read back from the trackers' own files."""

from __future__ import annotations

from pathlib import Path

import pytest
import trackio
import wandb
from support.readback import wandb_alerts, wandb_file
from trackio.sqlite_storage import SQLiteStorage

from areal_callbacks import MetricsConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.session.outputs import make_publisher
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import make_guests

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")]

TITLE = "staleness at step 1"


def publish(folder: Path, config: MetricsConfig, guests: list[MetricWriter] | None = None) -> None:
    publisher = make_publisher(Run(folder), config, guests or ())
    for step in range(1, 30):
        publisher.publish(Export(step, {"ppo_actor/update/version_stats/sample_staleness_theta_avg": 20.0}))
    publisher.close()


@pytest.mark.parametrize("alerts", [True, False])
def test_a_run_of_our_own_has_each_alert_once(offline_trackers: Path, alerts: bool) -> None:
    trackers = {
        "wandb": {"mode": "offline", "project": "p"},
        "trackio": {"project": f"alerts-{alerts}", "name": "run", "mode": "local"},
    }
    publish(offline_trackers, MetricsConfig(stats_logger=trackers, alerts=alerts, report=False))
    expected = [(TITLE, "ERROR")] if alerts else []
    assert [(title, level) for title, _, level in wandb_alerts(wandb_file(offline_trackers))] == expected
    stored = SQLiteStorage.get_alerts(f"alerts-{alerts}", "run")
    assert [(one["title"], one["level"].upper()) for one in stored] == expected
    assert all("versions old on average since step 1. Bound the staleness" in one["text"] for one in stored)


def test_the_run_of_a_host_has_them_too(offline_trackers: Path) -> None:
    run = wandb.init(mode="offline", dir=str(offline_trackers.parent))
    trackio.init(project="host-alerts", name="run")
    config = MetricsConfig(alerts=True, report=False)
    publish(offline_trackers, config, make_guests([("wandb", HostRun()), ("trackio", HostRun())], config.moe_balance))
    run.finish()
    trackio.finish()
    assert [title for title, _, _ in wandb_alerts(wandb_file(offline_trackers.parent))] == [TITLE]
    assert [one["title"] for one in SQLiteStorage.get_alerts("host-alerts", "run")] == [TITLE]
