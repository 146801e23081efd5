"""Reading YAML and JSON: one message for one fault, whoever reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from areal_callbacks import MetricsConfig, StatsLogger
from areal_callbacks.cli import main
from areal_callbacks.config.files import Layer, parse_json, read_environment, read_json, read_yaml

DEEP = "[" * 100_000


def read_in_launch(path: Path) -> None:
    refuse(CliRunner().invoke(main, ["launch", "--config_file", str(path), "train.py"]))


def read_metrics_in_launch(path: Path) -> None:
    refuse(CliRunner().invoke(main, ["launch", "--cpu", "--areal_config", str(path), "train.py"]))


def read_in_flops(path: Path) -> None:
    refuse(CliRunner().invoke(main, ["flops", str(path)]))


def read_in_inspect(path: Path) -> None:
    refuse(CliRunner().invoke(main, ["inspect", str(path)]))


def refuse(result: Any) -> None:
    assert result.exit_code == 1
    raise ValueError(result.output.removeprefix("Error: ").removesuffix("\n"))


YAML_READERS: list[Callable[[Path], Any]] = [
    read_yaml,
    MetricsConfig.make,
    MetricsConfig.from_yaml,
    StatsLogger,
    read_in_launch,
    read_metrics_in_launch,
]
JSON_READERS: list[Callable[[Path], Any]] = [read_json, read_in_flops, read_in_inspect]
FAULTS = {
    "YAML": {
        "a: [1\nb: 2": "malformed YAML: while parsing a flow sequence",
        "\x00": "malformed YAML: unacceptable character #x0000",
        "a: 2020-99-99": "malformed YAML: month must be in 1..12",
        DEEP: "malformed YAML: nested too deeply",
        "- 1\n- 2": "expected a mapping of keys to values, got [1, 2]",
        "just words": "expected a mapping of keys to values, got 'just words'",
    },
    "JSON": {
        "{": "malformed JSON: Expecting property name",
        "\xff": "malformed JSON: ",
        DEEP: "malformed JSON: nested too deeply",
        "[1]": "expected a mapping of keys to values, got [1]",
        "null": "expected a mapping of keys to values, got None",
    },
}
CASES = [
    *((reader, text, message) for reader in YAML_READERS for text, message in FAULTS["YAML"].items()),
    *((reader, text, message) for reader in JSON_READERS for text, message in FAULTS["JSON"].items()),
]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AREAL_CALLBACKS", raising=False)
    monkeypatch.setattr("sys.argv", ["areal-callbacks"])


@pytest.mark.parametrize(
    ("reader", "text", "message"), CASES, ids=[f"{reader.__name__}-{text[:10]!r}" for reader, text, _ in CASES]
)
def test_every_reader_names_the_file_and_the_fault(
    tmp_path: Path, reader: Callable[[Path], Any], text: str, message: str
) -> None:
    path = tmp_path / "given"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError) as error:
        reader(path)
    assert str(error.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("reader", [*YAML_READERS, read_json])  # the others take a name of nothing for a model type
def test_every_reader_names_a_file_that_cannot_be_read(tmp_path: Path, reader: Callable[[Path], Any]) -> None:
    for path, reason in ((tmp_path / "nowhere", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError) as error:
            reader(path)
        assert str(error.value) == f"{path}: cannot read this configuration file: {reason}"


def test_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: {b: [1, x]}\nc: null\n")
    (tmp_path / "a.json").write_text('{"a": {"b": [1, "x"]}, "c": null}')
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    expected = {"a": {"b": [1, "x"]}, "c": None}
    assert (
        read_yaml(tmp_path / "a.yaml") == read_yaml(tmp_path / "a.json") == read_json(tmp_path / "a.json") == expected
    )
    assert read_yaml(tmp_path / "empty.yaml") == {}
    assert parse_json('{"a": 1}', "here") == {"a": 1}


def test_the_environment_is_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "environment variable AREAL_CALLBACKS"
    assert read_environment() == Layer(source, {})
    monkeypatch.setenv("AREAL_CALLBACKS", " ")
    assert read_environment() == Layer(source, {})
    monkeypatch.setenv("AREAL_CALLBACKS", json.dumps({"every": 3}))
    assert read_environment() == Layer(source, {"every": 3})


@pytest.mark.parametrize("text", ["{", "[1]", "1", '"x"', "null"])
def test_a_bad_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("AREAL_CALLBACKS", text)
    for read in (read_environment, MetricsConfig.make, MetricsConfig.from_environment):
        with pytest.raises(ValueError, match=r"^environment variable AREAL_CALLBACKS: (malformed JSON|expected a map)"):
            read()
