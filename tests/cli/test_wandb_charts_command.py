"""``areal-callbacks wandb-charts``: what can be checked without a server, and whole tables."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.report_runs import export, write_run

from areal_callbacks.charts import CHARTS, load_chart
from areal_callbacks.cli.wandb_charts import command

COUNTS = {1: np.array([[1, 3], [0, 0]]), 2: np.array([[5, 5], [9, 1]])}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def table(text: str) -> list[list[Any]]:
    header, *rows = csv.reader(io.StringIO(text))
    return [header, *([float(value) for value in row] for row in rows)]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [export(step, {}, counts) for step, counts in COUNTS.items()])


def test_it_is_a_command() -> None:
    assert isinstance(command, click.Command)
    assert command.name == "wandb-charts"


def test_a_dry_run_names_the_charts() -> None:
    result = run("--entity", "my-team", "--dry-run", "--access", "public")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[2] for line in lines] == [f"my-team/{name}" for name in CHARTS]
    assert all("(public)" in line for line in lines)


@pytest.mark.parametrize("name", CHARTS)
def test_a_printed_chart_can_be_pasted(name: str) -> None:
    result = run("--print", name, "--layers", 3)
    assert json.loads(result.output) == load_chart(name, layers=3)


def test_arguments_are_checked() -> None:
    assert "--entity says who gets the charts" in run().output
    assert "is not one of 'moe_layer_expert_heatmap'" in run("--print", "nothing").output
    assert run("--entity", "me", "--access", "secret").exit_code == 2


def test_without_a_key_it_says_so_and_does_not_ask(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "from areal_callbacks.cli import main; main()", "wandb-charts", "--entity", "me"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: W&B: ")
    assert "API key" in done.stderr


def test_tables_from_metrics(metrics: Path) -> None:
    assert table(run("recover", metrics).output) == [
        ["step", "layer", "expert", "tokens", "load_percent"],
        [1, 0, 0, 1, 25],
        [1, 0, 1, 3, 75],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [2, 0, 0, 5, 50],
        [2, 0, 1, 5, 50],
        [2, 1, 0, 9, 90],
        [2, 1, 1, 1, 10],
    ]
    assert len(table(run("recover", metrics.parent, "--step", 2).output)) == 5


def test_a_row_per_layer_for_the_step_by_layer_chart(metrics: Path, tmp_path: Path) -> None:
    result = run("recover", metrics, "--summary", "-o", tmp_path / "layers.csv")
    assert result.output == ""
    assert table((tmp_path / "layers.csv").read_text()) == [
        ["step", "layer", "max_over_ideal"],
        [1, 0, 1.5],
        [1, 1, 0],
        [2, 0, 1],
        [2, 1, 1.8],
    ]


def test_stacks_have_a_column(tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(1, {}, {("", 0): [1, 1], ("encoder", 0): [2]})])
    assert run("recover", file).output.splitlines() == [
        "step,stack,layer,expert,tokens,load_percent",
        "1,,0,0,1,50.0",
        "1,,0,1,1,50.0",
        "1,encoder,0,0,2,100.0",
    ]


def write_table(file: Path, rows: list[list[Any]], columns: list[str] | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"columns": columns or ["layer", "expert", "tokens", "load_percent"], "data": rows}
    file.write_text(json.dumps(content))
    return file


def test_tables_from_downloaded_artifacts(tmp_path: Path) -> None:
    for version in (10, 2):
        folder = tmp_path / f"run-abc-moe_balanceexpert_loads:v{version}" / "moe_balance"
        write_table(folder / "expert_loads.table.json", [[0, 0, version, 100.0]])
    assert run("recover", tmp_path).output.splitlines() == [
        "table,layer,expert,tokens,load_percent",
        "v2,0,0,2,100.0",
        "v10,0,0,10,100.0",
    ]
    assert "do not contain their step" in run("recover", tmp_path, "--step", 1).output


def test_a_truncated_table_is_reported(tmp_path: Path) -> None:
    rows = [[0, 0, 1, 50.0], [0, 1, 1, 50.0], [1, 0, 3, 75.0]]
    file = write_table(tmp_path / "expert_loads_7_ab.table.json", rows)
    result = run("recover", file)
    assert result.exit_code == 0
    assert "expert_loads_7_ab: layer 1 lacks experts: the table is truncated" in result.stderr
    assert len(result.stdout.splitlines()) == 4


def test_a_whole_table_that_wandb_wrote_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    rows = [
        [layer, expert, layer + expert, 100 * (layer + expert) / (6 + 4 * layer)]
        for layer in range(3)
        for expert in range(4)
    ]
    offline = wandb.init(mode="offline", dir=str(tmp_path), project="tables", settings=wandb.Settings(silent=True))
    offline.log({"moe_balance/expert_loads": wandb.Table(["layer", "expert", "tokens", "load_percent"], rows)})
    offline.finish()
    result = run("recover", tmp_path / "wandb")
    assert result.exit_code == 0, result.output
    assert [row[1:] for row in csv.reader(io.StringIO(result.stdout))][1:] == [
        [str(value) for value in row] for row in rows
    ]


def test_what_holds_no_tables(tmp_path: Path) -> None:
    assert "no metrics.jsonl and no *expert_loads*.table.json" in run("recover", tmp_path).output
    file = write_table(tmp_path / "expert_loads.table.json", [[1]], columns=["a"])
    assert "not a table with the columns layer, expert, tokens, load_percent" in run("recover", file).output
    for row in ([], [0, 1, None, 2.0], [0, "nan", 1, 2.0], None):
        result = run("recover", write_table(tmp_path / "expert_loads.table.json", [row]))
        assert isinstance(result.exception, SystemExit)
        assert "expert_loads.table.json: not a table" in result.output
    dense = write_run(tmp_path / "dense", [export(1, {"a": 1.0})])
    assert "no expert loads" in run("recover", dense).output
