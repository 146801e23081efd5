"""``areal-callbacks report`` on files and folders."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from support.report_runs import export, write_run

from areal_callbacks.cli.report import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def host(tmp_path: Path) -> Path:
    write_run(tmp_path / "host" / "areal_metrics", [export(1, {"a": 1.0})])
    return tmp_path / "host"


def names(report: Path) -> list[str]:
    data = report.read_text(encoding="utf-8").partition('type="application/json">')[2].partition("</script>")[0]
    return [one["name"] for one in json.loads(data)["runs"]]


def test_it_is_a_command() -> None:
    assert isinstance(command, click.Command)
    assert command.name == "report"


def test_the_report_lies_beside_the_metrics(host: Path) -> None:
    result = run(host)
    report = host / "areal_metrics" / "report.html"
    assert result.exit_code == 0
    assert result.output.strip() == str(report)
    assert names(report) == ["host"]


def test_several_runs_are_compared(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_run(tmp_path / "other", [export(1, {"a": 1.0})])
    monkeypatch.chdir(tmp_path)
    result = run(host, other)
    assert result.output.strip() == "report.html"
    assert names(tmp_path / "report.html") == ["host", "other"]
    result = run(host, other, "-o", tmp_path / "new" / "both.html", "--name", "A", "--name", "B")
    assert result.exit_code == 0
    assert names(tmp_path / "new" / "both.html") == ["A", "B"]


def test_it_is_opened_on_request(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(click, "launch", opened.append)
    run(host)
    assert opened == []
    run(host, "--open")
    assert opened == [(host / "areal_metrics" / "report.html").resolve().as_uri()]


def test_errors_are_one_line(host: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path / "nowhere",), "no such file or folder"),
        ((tmp_path,), "no metrics.jsonl"),
        ((host, "--name", "A", "--name", "B"), "names: 2 for 1 runs"),
        ((host, "-o", "/dev/null/report.html"), "/dev/null"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1, result.output
        assert message in result.output
        assert result.output.startswith("Error: ")
    assert run().exit_code == 2
