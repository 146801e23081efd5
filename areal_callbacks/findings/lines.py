"""Findings as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from areal_callbacks.findings.finding import Finding

MOST_LINES = 3


def list_lines(findings: Sequence[Finding], width: int = 78, most: int = MOST_LINES) -> list[str]:
    """The gravest findings, one a line; the last line tells how many more there are.

    Args:
        findings: as :func:`areal_callbacks.findings.find` orders them.
        width: of a line.
        most: lines.
    """
    shown = len(findings) if len(findings) <= most else most - 1
    lines = [f"{finding.severity}: {finding.summary}" for finding in findings[:shown]]
    if shown < len(findings):
        lines.append(f"and {len(findings) - shown} more findings: areal-callbacks check")
    return [textwrap.shorten(line, width, placeholder=" …") for line in lines]


def describe(findings: Sequence[Finding], width: int = 100) -> Iterator[str]:
    """Every finding with its advice and where to read more."""
    for finding in findings:
        yield f"{finding.severity:<7}  step {finding.step:,}: {finding.summary}"
        advice = f"{finding.advice} ({finding.docs})"
        yield from textwrap.wrap(
            advice, width, initial_indent=" " * 9, subsequent_indent=" " * 9, break_on_hyphens=False
        )
