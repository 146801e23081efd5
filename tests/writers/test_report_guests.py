"""MLflow and Comet as trackers of hosts: what lies on disk after real trainings, read without their clients."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

STEPS = 4


def train(host: str, folder: Path, **environment: str) -> list[MetricsRecord]:
    """What metrics.jsonl holds after the training."""
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    result = subprocess.run(
        [sys.executable, "-m", "support.report_guest_runs", host, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    records = read_metrics(folder / "ours" / "metrics.jsonl")
    return [record for record in records if isinstance(record, MetricsRecord)]


def select_keys(records: list[MetricsRecord]) -> set[str]:
    keys = {key for record in records for key in record.metrics if key.startswith(("train_perf/", "moe_balance/"))}
    assert "train_perf/tokens_per_second" in keys
    return keys


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
    store = tmp_path / "mlruns"
    # A database would need more than mlflow-skinny.
    ours = train(host, tmp_path, MLFLOW_TRACKING_URI=store.as_uri(), MLFLOW_ALLOW_FILE_STORE="true")
    (metrics,) = store.glob("*/*/metrics")
    logged, keys = read_series(metrics.parent), select_keys(ours)
    assert keys <= logged.keys()
    for record in ours[:STEPS]:
        for key in keys & record.metrics.keys():
            assert record.metrics[key] in logged[key].values()
    assert len(logged["train_perf/tokens"]) >= STEPS
    report = (tmp_path / "ours" / "report.html").read_bytes()
    assert (metrics.parent / "artifacts" / "report.html").read_bytes() == report


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("comet_ml") is None, reason="comet_ml changes other modules: not in CI")
def test_comet_has_our_names_and_the_report(tmp_path: Path) -> None:
    ours = train("comet", tmp_path, COMET_OFFLINE_DIRECTORY=str(tmp_path / "comet"), COMET_START_ONLINE="0")
    (archive,) = (tmp_path / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as experiment:
        messages = [json.loads(line) for line in experiment.read("messages.json").splitlines()]
        logged = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
        values = {(entry["metricName"], entry["step"]): entry["metricValue"] for entry in logged}
        for record in ours[:STEPS]:
            for key in select_keys(ours) & record.metrics.keys():
                assert values[key, record.step] == pytest.approx(record.metrics[key])
        files = [message["payload"] for message in messages if message["type"] == "file_upload"]
        (report,) = [one for one in files if one["additional_params"]["fileName"] == "report.html"]
        assert experiment.read(report["file_path"]) == (tmp_path / "ours" / "report.html").read_bytes()
