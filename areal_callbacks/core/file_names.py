"""Names of the files and folders of a run. Loads no torch."""

from __future__ import annotations

RUN_FOLDER = "areal_metrics"
"""The folder of a run's files inside the output folder of its host."""

METRICS_FILE = "metrics.jsonl"
REPORT_FILE = "report.html"
TENSORBOARD_FOLDER = "tensorboard"
SWANLAB_FOLDER = "swanlog"

MEGATRON_TOTALS_FILE = "areal_metrics_totals.json"
"""Beside Megatron's checkpoints: the cumulative totals of every saved iteration."""

ACCELERATE_TOTALS_FILE = "areal_callbacks.json"
"""In the folder of an Accelerate checkpoint: the cumulative totals at that moment."""
