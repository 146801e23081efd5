"""What is wrong with a run: rules over what it has exported.

Every rule is a file in :mod:`areal_callbacks.findings.rules`: a pure function of the history, with the reasons for its
threshold. False alarms are worse than silence: ``benchmarks/findings.py`` measures both on simulated runs.

    from areal_callbacks.findings import find
    from areal_callbacks.report import find_metrics
    from areal_callbacks.report.history import read_history

    for finding in find(read_history(find_metrics("outputs/run1"), "run1")):
        print(finding.severity, finding.step, finding.summary, finding.advice)

Loads no torch.
"""

from __future__ import annotations

from areal_callbacks.findings.finding import Finding, Layer, Severity
from areal_callbacks.findings.history import ExportedHistory
from areal_callbacks.findings.rules import RULES

__all__ = ["RULES", "ExportedHistory", "Finding", "Layer", "Severity", "find"]


def find(history: ExportedHistory) -> list[Finding]:
    """Everything that is wrong with a run: severe findings first, then in the order of their steps."""
    found = [finding for judge in RULES.values() for finding in judge(history)]
    return sorted(found, key=lambda finding: (finding.severity != "severe", finding.step, finding.subject))
