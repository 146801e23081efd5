"""The rules, by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory
from areal_callbacks.findings.rules import expert_collapse, nonfinite, throughput_drop

RULES: dict[str, Callable[[ExportedHistory], Iterator[Finding]]] = {
    "nonfinite": nonfinite.judge,
    "expert_collapse": expert_collapse.judge,
    "throughput_drop": throughput_drop.judge,
}
