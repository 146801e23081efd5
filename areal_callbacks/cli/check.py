"""``areal-callbacks check``: what is wrong with a run, for people and for pipelines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from areal_callbacks.cli.errors import explain
from areal_callbacks.findings import Finding, find
from areal_callbacks.findings.lines import describe
from areal_callbacks.report import find_metrics
from areal_callbacks.report.history import read_history
from areal_callbacks.safety.text import tell_number
from areal_callbacks.writers.redact import as_json_number


@click.command("check")
@click.argument("path", metavar="PATH")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: the steps, and the findings with their numbers."
)
def command(path: str, as_json: bool) -> None:
    """Say what is wrong with a run.

    PATH is a metrics.jsonl, its folder, or a host's output folder that has an areal_metrics folder. A run may still be
    going on. Exit code 1: some of it is severe; 2: it cannot be read.

    \b
    Example:
      areal-callbacks check outputs/new --json
    """
    try:
        history = read_history(find_metrics(path), path)
    except (ValueError, OSError) as error:
        raise click.UsageError(explain(error)) from error
    findings = find(history)
    if as_json:
        steps = [history.steps[0], history.steps[-1]] if history.steps else []
        click.echo(json.dumps({"steps": steps, "findings": [_as_json(finding) for finding in findings]}, indent=2))
    else:
        click.echo(_describe(findings, len(history.steps)))
    if any(finding.severity == "severe" for finding in findings):
        raise SystemExit(1)


def _as_json(finding: Finding) -> dict[str, object]:
    evidence = {name: as_json_number(number) for name, number in finding.evidence.items()}
    return {**finding.to_dict(), "evidence": evidence}


def _describe(findings: Sequence[Finding], exports: int) -> str:
    if not findings:
        return f"nothing found in {tell_number(exports, 'export')}"
    severe = sum(finding.severity == "severe" for finding in findings)
    others = tell_number(len(findings) - severe, "other finding")
    head = f"{severe} severe and {others} in {tell_number(exports, 'export')}"
    return "\n".join([head, "", *describe(findings)])
