"""The Vega-Lite specifications: valid, and drawn with the numbers of the data."""

from __future__ import annotations

import json
import re
from typing import Any

import altair
import jsonschema
import numpy as np
import pytest
import vl_convert

from areal_callbacks.charts import CHARTS, load_chart

COUNTS = np.array([[10, 30, 20, 20], [0, 0, 0, 0], [5, 5, 80, 10]])
STEPS = {10: [1.5, 0.0], 20: [2.25, 3.5]}


def filled(specification: dict[str, Any], **strings: str) -> dict[str, Any]:
    """As W&B fills it in: the fields under their own names, the given strings, and defaults for other strings."""

    def value(match: re.Match[str]) -> str:
        kind, name, default = match.groups()
        return default or name if kind == "field" else strings.get(name, default or "")

    text = re.sub(r"\$\{(field|string):([^:}]+)(?::([^}]*))?\}", value, json.dumps(specification))
    return json.loads(text)


def draw(name: str, rows: list[dict[str, Any]], **strings: str) -> dict[str, list[dict[str, str]]]:
    """The marks of the drawn chart by their type, as they describe themselves to screen readers."""
    return draw_specification(load_chart(name, layers=4), rows, **strings)


def draw_specification(
    specification: dict[str, Any], rows: list[dict[str, Any]], **strings: str
) -> dict[str, list[dict[str, str]]]:
    specification = filled(specification, **strings)
    specification |= {"data": {"values": rows, "name": "wandb"}, "width": 400, "height": 300}
    drawn: dict[str, list[dict[str, str]]] = {}
    _collect(vl_convert.vegalite_to_scenegraph(specification, vl_version="5.20"), drawn)
    return drawn


def _collect(node: Any, drawn: dict[str, list[dict[str, str]]]) -> None:
    if isinstance(node, list):
        for inner in node:
            _collect(inner, drawn)
    elif isinstance(node, dict):
        if node.get("role") == "mark":
            descriptions = (item.get("description", "") for item in node["items"])
            parts = [dict(part.split(": ", 1) for part in text.split("; ") if ": " in part) for text in descriptions]
            drawn.setdefault(node["marktype"], []).extend(parts)
        _collect([value for value in node.values() if isinstance(value, dict | list)], drawn)


def expert_rows(stack: str | None = None) -> list[dict[str, Any]]:
    rows = []
    for layer, counts in enumerate(COUNTS):
        for expert, count in enumerate(counts):
            percent = 100 * count / counts.sum() if counts.sum() else 0.0
            row = {"layer": layer, "expert": expert, "tokens": int(count), "load_percent": float(percent)}
            rows.append(row if stack is None else {**row, "stack": stack})
    return rows


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("defaults", [True, False])
def test_a_chart_is_valid_vega_lite(name: str, defaults: bool) -> None:
    specification = load_chart(name, defaults=defaults)
    assert specification["data"] == {"name": "wandb"}
    validator = jsonschema.Draft7Validator(altair.load_schema())
    assert [error.message for error in validator.iter_errors(filled(specification))] == []


@pytest.mark.parametrize("name", CHARTS)
def test_presets_have_placeholders_without_defaults(name: str) -> None:
    with_defaults, without = (json.dumps(load_chart(name, defaults=choice)) for choice in (True, False))
    names = re.findall(r"\$\{((?:field|string):[^:}]+):", with_defaults)
    assert names
    assert re.findall(r"\$\{([^}]+)\}", without) == names


def test_layer_by_expert() -> None:
    marks = draw("moe_layer_expert_heatmap", expert_rows())["rect"]
    assert len(marks) == COUNTS.size
    for mark in marks:
        layer, expert = int(mark["layer"]), int(mark["expert"])
        ideal = COUNTS[layer].sum() / COUNTS.shape[1]
        assert float(mark["load / ideal"]) == pytest.approx(COUNTS[layer, expert] / ideal if ideal else 0.0, abs=1e-3)
        assert int(mark["tokens"]) == COUNTS[layer, expert]


def test_layers_of_several_stacks_have_rows_of_their_own() -> None:
    marks = draw("moe_layer_expert_heatmap", expert_rows("") + expert_rows("encoder"))["rect"]
    assert len(marks) == 2 * COUNTS.size
    assert {mark["layer"] for mark in marks} == {"0", "1", "2", "encoder 0", "encoder 1", "encoder 2"}


def test_the_bars_of_one_layer_and_its_ideal_line() -> None:
    drawn = draw("moe_single_layer_bar", expert_rows(), layer="2")
    bars = [(bar["expert"], bar["tokens"], float(bar["load %"]), float(bar["load / ideal"])) for bar in drawn["rect"]]
    assert bars == [("0", "5", 5.0, 0.2), ("1", "5", 5.0, 0.2), ("2", "80", 80.0, 3.2), ("3", "10", 10.0, 0.4)]
    assert [list(line.values()) for line in drawn["rule"]] == [["25"]]
    assert len(drawn["text"]) == 1


def test_the_bars_of_a_stack() -> None:
    rows = expert_rows("") + [{**row, "tokens": 1, "load_percent": 25.0} for row in expert_rows("encoder")]
    main = draw("moe_single_layer_bar", rows, layer="2")["rect"]
    assert [bar["tokens"] for bar in main] == ["5", "5", "80", "10"]
    encoder = draw("moe_single_layer_bar", rows, layer="2", stack="encoder")["rect"]
    assert [bar["tokens"] for bar in encoder] == ["1"] * 4


def other_run(experts: int) -> list[dict[str, Any]]:
    """Rows that W&B adds to those of the first run where two runs are shown."""
    return [
        {"layer": layer, "expert": expert, "tokens": 1, "load_percent": 100 / experts}
        for layer in range(3)
        for expert in range(experts)
    ]


@pytest.mark.parametrize("experts", [4, 8, 2])
def test_two_runs_at_once_have_no_ideal_line_but_advice(experts: int) -> None:
    drawn = draw("moe_single_layer_bar", expert_rows() + other_run(experts), layer="2")
    assert len(drawn["rect"]) == 4 + experts
    assert drawn.get("rule", []) == []
    assert all("load / ideal" not in bar or bar["load / ideal"] in ("null", "") for bar in drawn["rect"])
    assert len(drawn["text"]) == 1
    map_of_both = draw("moe_layer_expert_heatmap", expert_rows() + other_run(experts))
    assert map_of_both.get("rect", []) == []
    assert len(map_of_both["text"]) == 1


@pytest.mark.parametrize("name", ["moe_layer_expert_heatmap", "moe_single_layer_bar"])
def test_columns_may_have_the_prefix_of_wandbs_tables(name: str) -> None:
    """W&B may call them ``runSets_historyTable_layer``; the placeholders are then set to these names."""
    prefix = "runSets_historyTable_"
    rows = [{f"{prefix}{column}": value for column, value in row.items()} for row in expert_rows("encoder")]
    text = json.dumps(load_chart(name))
    for column in ("layer", "expert", "tokens", "load_percent", "stack"):
        text = text.replace(f"${{field:{column}:{column}}}", f"{prefix}{column}")
    plain = draw(name, expert_rows("encoder"), layer="2", stack="encoder")
    assert draw_specification(json.loads(text), rows, layer="2", stack="encoder") == plain
    assert len(plain["rect"]) > 3


def test_step_by_layer_from_a_table() -> None:
    rows = [
        {"step": step, "layer": layer, "max_over_ideal": value}
        for step, values in STEPS.items()
        for layer, value in enumerate(values)
    ]
    marks = draw("moe_step_layer_heatmap", rows)["rect"]
    drawn = {(int(mark["step"]), int(mark["layer"])): float(mark["max / ideal"]) for mark in marks}
    assert drawn == {(step, layer): value for step, values in STEPS.items() for layer, value in enumerate(values)}


def test_step_by_layer_from_scalars() -> None:
    rows = [
        {
            "_step": step,
            **{f"moe_balance/layer_{layer}/max_over_ideal": value for layer, value in enumerate(values)},
            "loss": 1.0,
        }
        for step, values in STEPS.items()
    ]
    marks = draw("moe_step_layer_history", rows)["rect"]
    drawn = {(int(mark["step"]), int(mark["layer"])): float(mark["max / ideal"]) for mark in marks}
    assert drawn == {(step, layer): value for step, values in STEPS.items() for layer, value in enumerate(values)}


def test_scalars_of_a_stack() -> None:
    folds = [
        step["fold"]
        for step in load_chart("moe_step_layer_history", layers=2, stack="encoder")["transform"]
        if "fold" in step
    ]
    assert folds == [["moe_balance/encoder/layer_0/max_over_ideal", "moe_balance/encoder/layer_1/max_over_ideal"]]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="no chart 'pie'; choose among moe_layer_expert_heatmap"):
        load_chart("pie")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        load_chart("moe_step_layer_history", layers=0)
