"""``areal-callbacks inspect`` on model types, directories and files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from transformers import Mamba2Config

from areal_callbacks.cli.inspect import command

# Building some models without weights warns about the sizes of positions that only a real one needs.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning:transformers")

TINY: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 6,
    "mlp_only_layers": [3],
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "moe_intermediate_size": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
}


def run(argument: object) -> Result:
    return CliRunner().invoke(command, [str(argument)])


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def cells(output: str, router: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if router in line]
    return re.split(r"\s{2,}", line.strip())


def test_it_is_a_command() -> None:
    assert isinstance(command, click.Command)
    assert command.name == "inspect"


def test_a_directory_with_a_configuration(tmp_path: Path) -> None:
    write(tmp_path / "config.json", TINY)
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.output.startswith("Qwen3MoeForCausalLM (qwen3_moe)")
    assert cells(result.output, "TopKRouter") == ["(main)", "0-2, 4-5", "Qwen3MoeTopKRouter", "index", "8", "2"]
    assert re.search(r"FLOPs: [\d,]+ to train on one sequence of 4,096 tokens", result.output)


def test_a_saved_number_that_json_does_not_have(tmp_path: Path) -> None:
    size = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 4, "vocab_size": 64}
    Mamba2Config(num_hidden_layers=1, **size).save_pretrained(tmp_path)
    assert '"__float__"' in (tmp_path / "config.json").read_text()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.output.startswith("Mamba2ForCausalLM")


@pytest.mark.parametrize(
    ("model_class", "macs_of_head"),
    [("GPT2LMHeadModel", 64 * 16 * 4096), ("GPT2Model", 0), ("GPT2ForSequenceClassification", 2 * 16 * 4096)],
)
def test_the_saved_class_decides_on_the_head(tmp_path: Path, model_class: str, macs_of_head: int) -> None:
    """By hand: one layer of hidden size 16 with an MLP of 64."""
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 8}
    result = run(write(tmp_path / "config.json", {"model_type": "gpt2", "architectures": [model_class], **size}))
    layer = (4 * 16 * 16 + 2 * 16 * 64) * 4096 + 2 * 16 * 4096 * 4097 // 2
    assert result.output.startswith(f"{model_class} (gpt2)")
    assert f"FLOPs: {6 * (layer + macs_of_head):,} to train on" in result.output
    assert f"4,096 tokens: {6 * (layer + macs_of_head):,} FLOPs" in result.output


def test_a_model_of_two_sequences_is_built_whole(tmp_path: Path) -> None:
    size = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    result = run(write(tmp_path / "config.json", {"model_type": "bart", "vocab_size": 64, **size}))
    assert result.output.startswith("BartForConditionalGeneration (bart)")
    assert "a source and a target sequence of 4,096 tokens each" in result.output


def test_a_json_file_and_its_blocks(tmp_path: Path) -> None:
    fields = {"model_type": "jetmoe", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32}
    result = run(write(tmp_path / "tiny.json", fields | {"num_local_experts": 4, "num_experts_per_tok": 2}))
    assert result.exit_code == 0
    assert cells(result.output, "TopKGating") == ["(main)", "0-1", "JetMoeTopKGating", "top-k of logits", "4", "2"]
    assert re.search(r"^experts +2 ", result.output, re.MULTILINE)


@pytest.mark.slow
def test_a_model_type_at_its_full_size() -> None:
    result = run("qwen3_moe")
    assert result.exit_code == 0
    assert cells(result.output, "TopKRouter")[4:] == ["128", "8"]


def test_stacks_of_their_own() -> None:
    result = run("switch_transformers")
    assert result.exit_code == 0
    rows = [re.split(r"\s{2,}", line) for line in result.output.splitlines() if "Top1Router" in line]
    assert [(row[0], row[3]) for row in rows] == [("(main)", "mask"), ("encoder", "mask")]


def test_a_router_that_lacks_a_number_in_this_configuration_only(tmp_path: Path) -> None:
    fields = {"model_type": "deepseek_v2", "num_hidden_layers": 2, "hidden_size": 32, "n_routed_experts": 8}
    file = write(tmp_path / "config.json", fields | {"first_k_dense_replace": 0})  # transformers has no default top-k
    assert (
        "DeepseekV2TopkRouter: countable, but this configuration lacks the experts per token (top-k)\n"
        in run(file).output
    )
    write(file, fields | {"first_k_dense_replace": 0, "num_experts_per_tok": 3})
    output = run(file).output
    assert cells(output, "TopkRouter") == ["(main)", "0-1", "DeepseekV2TopkRouter", "index", "8", "3"]
    assert "times 6·N·D" in output


def test_a_family_without_a_formula(tmp_path: Path) -> None:
    fields = {"model_type": "doge", "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    result = run(write(tmp_path / "doge.json", fields))
    assert "no formula for doge; register_flops_estimator adds one" in result.output


def test_a_family_whose_only_head_is_a_larger_model(tmp_path: Path) -> None:
    fields = TINY | {"model_type": "qwen3_omni_moe_text", "architectures": None, "mlp_only_layers": []}
    result = run(write(tmp_path / "config.json", fields))
    assert result.output.startswith("Qwen3OmniMoeThinkerTextModel (qwen3_omni_moe_text)")
    assert cells(result.output, "TopKRouter")[1] == "0-5"


def test_a_dense_model_and_one_that_cannot_be_counted(tmp_path: Path) -> None:
    dense = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    result = run(write(tmp_path / "dense.json", dense | {"num_attention_heads": 2, "vocab_size": 64}))
    assert "no routers: no moe_balance metrics" in result.output
    product_keys = {"model_type": "doge", "is_moe": True, "num_hidden_layers": 1, "num_experts": 16}
    result = run(write(tmp_path / "doge.json", product_keys))
    assert "not countable: DogeCDMoE (register_router_contract adds a router class)" in result.output
    assert "no routers" not in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json: malformed JSON"),
        ("[1]", "config.json: expected a mapping of keys to values, got [1]"),
        ({"hidden_size": 8}, "the configuration has no 'model_type'"),
        ({"model_type": "nothing"}, "knows no model type 'nothing'"),
    ],
)
def test_what_is_no_configuration(content: Any, message: str, tmp_path: Path) -> None:
    result = run(write(tmp_path / "config.json", content))
    assert result.exit_code == 1
    assert message in result.output


def test_a_name_of_nothing_local() -> None:
    result = run("Qwen/Qwen3-30B-A3B")
    assert result.exit_code == 1
    assert "neither a local path nor a model type" in result.output
