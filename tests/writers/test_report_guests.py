"""MLflow as a host's tracker: what lies in its store after real trainings, read without its client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

STEPS = 4


def train(host: str, folder: Path) -> Path:
    """The folder of the run in MLflow's store."""
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # a database needs more than mlflow-skinny
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    }
    command = [sys.executable, "-m", "support.report_guest_runs", host, str(folder)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), environment.get("PYTHONPATH")]))
    result = subprocess.run(
        command, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, cwd=folder
    )
    assert result.returncode == 0, result.stderr
    assert "ours/report.html could not" not in result.stderr
    (metrics,) = (folder / "mlruns").glob("*/*/metrics")
    return metrics.parent


def read_series(run: Path) -> dict[str, dict[int, float]]:
    """Key → step → value; MLflow's file store has a file a metric and a line a value: time, value, step."""
    series: dict[str, dict[int, float]] = {}
    for file in (run / "metrics").rglob("*"):
        if file.is_file():
            lines = [line.split() for line in file.read_text().splitlines()]
            series[str(file.relative_to(run / "metrics"))] = {int(step): float(value) for _, value, step in lines}
    return series


@pytest.mark.slow
@pytest.mark.parametrize("host", ["transformers", "lightning"])
def test_mlflow_has_our_names_and_the_report(host: str, tmp_path: Path) -> None:
    run = train(host, tmp_path)
    ours = [record for record in read_metrics(tmp_path / "ours" / "metrics.jsonl") if isinstance(record, MetricsRecord)]
    logged = read_series(run)
    keys = {key for record in ours for key in record.metrics if key.startswith(("train_perf/", "moe_balance/"))}
    assert "train_perf/tokens_per_second" in keys
    assert keys <= logged.keys()
    for record in ours[:STEPS]:
        for key in keys & record.metrics.keys():
            assert record.metrics[key] in logged[key].values()
    assert len(logged["train_perf/tokens"]) >= STEPS
    assert (run / "artifacts" / "report.html").read_bytes() == (tmp_path / "ours" / "report.html").read_bytes()
