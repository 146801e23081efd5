"""Configuration files from anywhere end soon, with a short message that a terminal can show."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_callbacks.cli import main
from areal_callbacks.config import MetricsConfig
from areal_callbacks.config.files import LARGEST_YAML, read_json, read_yaml

LEVELS = "abcdefghij"
MERGES = "a: &a {k0: 1, k1: 2, k2: 3}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{below}'] * 9)}]}}\n" for below, name in itertools.pairwise(LEVELS)
)
"""Mappings that merge nine copies of the one before: 3 * 9⁹ entries."""

HOSTILE = {
    "merges of merges": MERGES,
    "a number in base 60": "every: 1" + ":1" * 200_000,
    "a hexadecimal number": "every: 0x" + "f" * 300_000,
    "deep nesting": "every: " + "[" * 5_000,
    "deep mappings": "every: " + "{a: " * 5_000,
    "an unknown alias with a long name": "every: *" + "x" * 500_000,
    "a tag with a long name": "every: !!" + "x" * 300_000 + " 1",
    "a key that is no word": "? [a, b]\n: 1",
    "a key that holds itself": "? &a [*a]\n: 1",
    "an escape in a key": '"\\e[31mevery": 1',
    "an escape in a value": 'every: "\\e]0;owned\\a"',
    "an escape in a nested key": 'moe_balance: {"\\e[2J": 1}',
    "a Python object": "every: !!python/object/apply:os.system [true]",
    "a section in itself": "stats_logger: &a {wandb: *a}",
    "an impossible date": "every: 2020-13-45",
    "a merge of no mapping": "<<: 3",
    "an invalid binary": "every: !!binary ---",
    "a set": "!!set {every, ppo}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_yaml_file_ends_soon_in_a_short_message(tmp_path: Path, name: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(HOSTILE[name])
    start = time.process_time()
    with pytest.raises(ValueError) as error:
        MetricsConfig.make(path)
    assert time.process_time() - start < 20
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value)) < 1_500
    assert str(error.value).replace("\n", "").isprintable()


def test_files_that_are_too_large_are_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_bytes(b"#" * (LARGEST_YAML + 1))
    with pytest.raises(ValueError, match="at most 1,048,576 bytes"):
        read_yaml(path)
    for read in (read_yaml, read_json):
        with pytest.raises(ValueError, match="a configuration file has at most"):
            read("/dev/zero")


def test_paths_in_messages_are_printable(tmp_path: Path) -> None:
    for name in ("\x1b[31m.yaml", "x" * 5_000, "nul\0l"):
        with pytest.raises(ValueError, match="cannot read this configuration file") as error:
            read_yaml(tmp_path / name)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 1_000


def test_ordinary_merges_and_numbers_still_work(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_text("base: &b {x: 1, y: 0x10}\nown: {<<: *b, y: 1:30, z: 1.5e+3}\n")
    assert read_yaml(path) == {"base": {"x": 1, "y": 16}, "own": {"x": 1, "y": 90, "z": 1500.0}}


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "qwen3_moe", "num_hidden_layers": 10**9},
        {"model_type": "qwen3", "text_config": {"num_hidden_layers": 10**6}},
        {"model_type": "gpt2", "n_layer": 10**8},
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 5_000},
        {"model_type": ["a"]},
        {"model_type": "\x1b[31m" + "x" * 10**5},
    ],
)
@pytest.mark.parametrize("command", [["flops"], ["flops", "--fill-defaults"], ["inspect"]])
def test_a_hostile_model_configuration_ends_soon(tmp_path: Path, fields: dict[str, object], command: list[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    start = time.process_time()
    result = CliRunner().invoke(main, [*command, str(tmp_path)])
    assert time.process_time() - start < 30
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "\x1b" not in result.output
    assert len(result.output) < 20_000
