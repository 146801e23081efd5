"""``areal-callbacks check`` on runs that the real writer wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.report_runs import export, write_run

from areal_callbacks.cli.check import command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def write(folder: Path, losses: list[float], speeds: list[float] | None = None) -> Path:
    speeds = speeds or [1000.0] * len(losses)
    balanced = np.full((2, 8), 500)
    rows = [
        export(10 * (place + 1), {"train_perf/tokens_per_second": speed}, balanced, loss=loss)
        for place, (loss, speed) in enumerate(zip(losses, speeds))
    ]
    return write_run(folder / "areal_metrics", rows)


def test_a_healthy_run_passes(tmp_path: Path) -> None:
    write(tmp_path, [1.0] * 40)
    result = run(tmp_path)
    assert (result.exit_code, result.output) == (0, "nothing found in 40 exports\n")
    assert json.loads(run(tmp_path, "--json").output) == {"steps": [10, 400], "findings": []}


def test_a_severe_finding_fails(tmp_path: Path) -> None:
    file = write(tmp_path, [1.0] * 5 + [math.nan] * 5)
    result = run(file)
    assert result.exit_code == 1
    assert result.output.startswith("1 severe and 0 other findings in 10 exports\n\nsevere   step 60: loss is nan")
    told = run(file, "--json")
    assert told.exit_code == 1
    (finding,) = json.loads(told.output)["findings"]
    assert finding["evidence"] == {"value": "NaN"}
    assert (finding["rule"], finding["step"], finding["docs"]) == ("nonfinite", 60, "docs/findings.md#nonfinite")


def test_a_warning_passes(tmp_path: Path) -> None:
    result = run(write(tmp_path, [1.0] * 60, [1000.0] * 40 + [700.0] * 20))
    assert result.exit_code == 0
    assert "0 severe and 1 other finding in" in result.output
    assert "docs/findings.md#throughput_drop" in result.output


@pytest.mark.parametrize("content", [None, "{}\n"])
def test_what_cannot_be_read_is_another_exit_code(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    assert run(tmp_path).exit_code == 2
