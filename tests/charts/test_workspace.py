"""The W&B workspace, built by W&B's library and read back from what it would send; no server is needed for that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from areal_callbacks.charts import CHARTS
from areal_callbacks.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def view() -> dict[str, Any]:
    place = ["--entity", "team", "--project", "moe"]
    result = CliRunner().invoke(main, ["wandb-workspace", *place, "--x", "train_perf/total_tokens", "--dry-run"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.output))


def panels_of(view: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for section in view["spec"]["section"]["panelBankConfig"]["sections"]:
        yield from section["panels"]


def documented_keys() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    found = set()
    for key in re.findall(r"^\| `([^`]+)`", text, flags=re.MULTILINE):
        choices = re.split(r"\{([^}]*)\}", key)
        names = [""]
        for index, part in enumerate(choices):
            names = [name + one.strip() for name in names for one in (part.split(",") if index % 2 else [part])]
        found.update(names)
    return found


def test_it_belongs_to_the_project(view: dict[str, Any]) -> None:
    assert (view["entity"], view["project"], view["displayName"]) == ("team", "moe", "AReaL metrics")
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == ["Learning", "Speed", "Experts", "Policy"]


def test_its_lines_are_of_documented_keys(view: dict[str, Any]) -> None:
    known = documented_keys()
    assert "train_perf/tokens_per_second" in known
    lines = [panel["config"] for panel in panels_of(view) if panel["viewType"] == "Run History Line Plot"]
    keys = {key for line in lines for key in line.get("metrics", ())}
    assert len(keys) > 10
    assert keys <= known
    assert {line["xAxis"] for line in lines} == {"train_perf/total_tokens"}


@pytest.mark.parametrize(
    ("title", "taken", "left"),
    [
        ("Loss", ["loss", "train/loss", "eval_loss", "lm loss"], ["loss_scale", "glossary"]),
        ("Reward", ["reward", "rollout/reward", "ppo_actor/task_reward/avg"], ["reward/min"]),
        (
            "Imbalance of every layer",
            ["moe_balance/layer_3/max_over_ideal", "moe_balance/encoder/layer_12/max_over_ideal"],
            [],
        ),
        ("Train/infer tails", ["ppo_actor/train_infer/ratio_outside_1.5"], ["ppo_actor/train_infer/ratio_above_2"]),
        ("Train/infer divergence", ["ppo_actor/train_infer/kl_k3"], ["ppo_actor/train_infer/kl_k3_overflow_fraction"]),
    ],
)
def test_families_are_found_by_their_names(view: dict[str, Any], title: str, taken: list[str], left: list[str]) -> None:
    config = next(panel["config"] for panel in panels_of(view) if panel["config"].get("chartTitle") == title)
    pattern = re.compile(f"^(?:{config['metricRegex']})$")
    assert [key for key in taken if not pattern.search(key)] == []
    assert [key for key in left if pattern.search(key)] == []


def test_the_charts_of_experts_go_through_the_steps_of_the_table(view: dict[str, Any]) -> None:
    custom = [panel["config"] for panel in panels_of(view) if panel["viewType"] == "Vega2"]
    assert [config["panelDefId"] for config in custom] == ["team/moe_layer_expert_heatmap", "team/moe_single_layer_bar"]
    assert {config["panelDefId"].removeprefix("team/") for config in custom} <= set(CHARTS)
    for config in custom:
        (field,) = config["userQuery"]["queryFields"]
        assert field["fields"][0]["name"] == "historyTable"
        assert field["fields"][0]["args"] == [{"name": "tableKey", "value": "moe_balance/expert_loads"}]
        source = ROOT / "areal_callbacks" / "charts" / f"{config['panelDefId'].removeprefix('team/')}.json"
        placeholders = re.findall(r"\$\{field:([a-z_]+)", source.read_text())
        assert set(placeholders) <= set(config["fieldSettings"])
