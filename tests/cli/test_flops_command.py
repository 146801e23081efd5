"""``areal-callbacks flops`` on model types, directories and files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from areal_callbacks.cli.flops import command
from areal_callbacks.flops import register_flops_estimator, registry
from areal_callbacks.flops.models import ARCHITECTURES

QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_it_is_a_command() -> None:
    assert isinstance(command, click.Command)
    assert command.name == "flops"


def test_a_directory_with_a_configuration(tmp_path: Path) -> None:
    write(tmp_path / "config.json", QWEN3_30B)
    result = run(tmp_path, "--length", 1, "--length", 4096, "--length", 32768)
    assert result.exit_code == 0
    assert "18,249,940,992·L + 1,179,648·L·(L+1)" in result.output
    for flops in ("18,252,300,288", "94,547,799,441,408", "1,864,690,116,329,472"):
        assert flops in result.output


def test_a_json_file_of_a_composite_model(tmp_path: Path) -> None:
    file = write(tmp_path / "model.json", {"model_type": "some_vision_model", "text_config": QWEN3_30B})
    result = run(file)
    assert result.exit_code == 0
    assert "4,096" in result.output
    assert "94,547,799,441,408" in result.output


@pytest.mark.parametrize("model_type", ["qwen3_5_moe", "qwen3_5_moe_text"])
def test_a_model_type_stands_for_its_default_dimensions(model_type: str) -> None:
    result = run(model_type, "--length", 0, "--length", 4096)
    assert result.exit_code == 0
    assert "77,690,925,219,840" in result.output


def test_blocks_by_hand(tmp_path: Path) -> None:
    """48 layers: attention of 32 heads with 4 key-value heads, 8 of 128 experts; 4096 tokens."""
    output = run(write(tmp_path / "config.json", QWEN3_30B)).output
    rows = {line.split("  ")[0]: re.split(r"\s{2,}", line.strip()) for line in output.splitlines()}
    attention = 48 * 2048 * 128 * (2 * 32 + 2 * 4)
    pairs = 6 * 48 * 2 * 32 * 128 * 4096 * 4097 // 2
    router, expert, head = 48 * 2048 * 128, 48 * 3 * 2048 * 768, 2048 * 151936
    flops = 6 * 4096 * attention + pairs
    assert rows["attention"][1:4] == ["48", f"{flops:,}", f"{flops / 4096:,.0f}"]
    assert rows["attention"][5:] == [f"{attention:,}"] * 2
    assert rows["experts"][5:] == [f"{8 * expert + router:,}", f"{128 * expert + router:,}"]
    active, total = attention + 8 * expert + router + head, attention + 128 * expert + router + head
    assert f"{total:,} parameters in matrices, {active:,} active" in output
    everything = 6 * 4096 * active + pairs
    assert f"{everything:,} FLOPs" in output
    assert f"attention share {pairs / everything:.1%}, {everything / (6 * active * 4096):.3f} times 6·N·D" in output


def test_json(tmp_path: Path) -> None:
    file = write(tmp_path / "config.json", QWEN3_30B)
    found = json.loads(run(file, "--json", "--length", 4096, "--length", 0).output)
    first, empty = found["sequences"]
    assert (first["tokens"], first["flops"]) == (4096, 94547799441408)
    assert sum(block["flops"] for block in first["blocks"]) == first["flops"]
    assert first["flops_per_token"] == first["flops"] / 4096
    assert first["ratio_to_6nd"] == first["flops"] / (6 * found["active_parameters"] * 4096)
    assert sum(block["parameters"] for block in first["blocks"]) == found["parameters"]
    assert (empty["flops"], empty["flops_per_token"]) == (0, None)


def test_json_of_a_registered_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_flops_estimator("mine", lambda config: lambda length: 3 * length)
    file = write(tmp_path / "mine.json", {"model_type": "mine"})
    assert json.loads(run(file, "--json", "--length", 10).output) == {"sequences": [{"tokens": 10, "flops": 30}]}


def test_both_sides_of_an_encoder_decoder() -> None:
    output = run("t5", "--length", 100).output
    assert "a source and a target sequence" in output
    assert "200 tokens" in output
    for block in ("encoder attention", "decoder mlp", "cross attention", "head"):
        assert re.search(rf"^\s*(decoder )?{block} ", output, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_type_with_default_dimensions_has_blocks_or_names_what_it_lacks(name: str) -> None:
    result = run(name, "--length", 64)
    if result.exit_code == 0:
        assert "times 6·N·D" in result.output
    else:
        reason = re.search("cannot estimate the FLOPs of|knows no model type|not a configuration of", result.output)
        assert reason is not None, result.output


def test_a_type_whose_defaults_do_not_suffice(tmp_path: Path) -> None:
    """transformers gives deepseek_v2 no number of experts per token."""
    assert "lacks 'num_experts_per_tok'" in run("deepseek_v2").output
    file = write(tmp_path / "config.json", {"model_type": "deepseek_v2", "num_experts_per_tok": 6})
    assert "times 6·N·D" in run(file, "--fill-defaults").output


def test_windows_are_shown() -> None:
    result = run("gpt_oss", "--length", 1)
    assert "·P(L, 128)" in result.output
    assert "window of W tokens" in result.output


def test_left_out_fields_are_named_and_filled_on_request(tmp_path: Path) -> None:
    incomplete = {name: value for name, value in QWEN3_30B.items() if name != "vocab_size"}
    file = write(tmp_path / "config.json", incomplete)
    refused = run(file)
    assert refused.exit_code == 1
    assert "'qwen3_moe'" in refused.output
    assert "'vocab_size'" in refused.output
    assert "--fill-defaults" in refused.output
    filled = run(file, "--fill-defaults")
    assert filled.exit_code == 0
    assert "94,547,799,441,408" in filled.output


def test_a_registered_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_flops_estimator("mine", lambda config: lambda length: config["cost"] * length)
    result = run(write(tmp_path / "mine.json", {"model_type": "mine", "cost": 2.5}), "--length", 1000)
    assert result.exit_code == 0
    assert "2,500.0" in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "resnet"}, "FLOPs: no formula for"),
        ({"model_type": "bert"}, "the configuration lacks 'hidden_size'"),
        ({}, "FLOPs: no formula for"),
        ([1], "config.json: expected a mapping of keys to values, got [1]"),
        ("{", "config.json: malformed JSON"),
    ],
)
def test_files_without_a_known_model(tmp_path: Path, content: Any, message: str) -> None:
    result = run(write(tmp_path / "config.json", content))
    assert result.exit_code == 1
    assert message in result.output


def test_names_that_are_not_local(tmp_path: Path) -> None:
    result = run("Qwen/Qwen3-30B-A3B")
    assert result.exit_code == 1
    assert "neither a local path nor a model type" in result.output
    assert "near to it: qwen3" in result.output
    assert "config.json: cannot read this configuration file" in run(tmp_path).output
    assert "transformers knows no model type 'kimi_k2', nor its default dimensions" in run("kimi_k2").output


def test_lengths_are_not_negative() -> None:
    assert run("llama", "--length", -1).exit_code == 2
