"""The self-contained HTML report: built from metrics.jsonl alone, opened without a network or a server."""

from areal_callbacks.report.build import build_report
from areal_callbacks.report.locate import find_metrics
from areal_callbacks.report.shown import Report, show_report
from areal_callbacks.report.writer import ReportWriter

__all__ = ["Report", "ReportWriter", "build_report", "find_metrics", "show_report"]
