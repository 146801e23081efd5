"""Configuration: every way in, every mistake named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_callbacks.config import (
    FlopsConfig,
    MetricsConfig,
    MetricsOptions,
    MoEBalanceConfig,
    ReportConfig,
    StatsLoggerConfig,
)
from areal_callbacks.config.files import Layer
from areal_callbacks.config.trackers import WandbConfig

EXAMPLE = """
throughput: true
moe_balance: {expert_table_every: 5, per_expert_scalars: auto}
flops: {peak_flops: 989e12}
ppo: false
every: 2
resume_totals: true
output_dir: runs/a
report: false
stats_logger:
  experiment_name: gsm8k_grpo
  trial_name: run_001
  fileroot: ./logs
  wandb: {mode: offline, project: p, entity: e, tags: [a, b]}
  swanlab: {mode: cloud, project: p}
  trackio: {project: p}
  tensorboard: {path: tb}
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AREAL_CALLBACKS", raising=False)


def write(folder: Path, text: str) -> Path:
    path = folder / "areal.yaml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    config = MetricsConfig.make()
    assert config == MetricsConfig()
    assert config.throughput
    assert config.moe_balance == MoEBalanceConfig(True, 1, "auto", False)
    assert (config.flops.enabled, config.flops.peak_flops) == (True, None)
    assert (config.ppo.enabled, config.ppo.extended) == (True, True)
    assert (config.every, config.resume_totals, config.output_dir, config.report) == (1, False, None, ReportConfig())
    assert config.stats_logger is None
    assert config.token_count_fn is None


def test_a_yaml_file_fills_every_section(tmp_path: Path) -> None:
    config = MetricsConfig.from_yaml(write(tmp_path, EXAMPLE))
    assert config.moe_balance == MoEBalanceConfig(expert_table_every=5)
    assert config.flops.peak_flops == 989e12
    assert not config.ppo.enabled
    assert (config.every, config.resume_totals, config.output_dir, config.report.enabled) == (2, True, "runs/a", False)
    assert config.stats_logger is not None
    assert config.stats_logger.wandb == WandbConfig(mode="offline", project="p", entity="e", tags=("a", "b"))
    assert config.stats_logger.swanlab is not None
    assert config.stats_logger.swanlab.mode == "cloud"
    assert config.stats_logger.tensorboard is not None
    assert config.stats_logger.tensorboard.path == "tb"
    assert MetricsConfig.make(tmp_path / "areal.yaml") == MetricsConfig.make(str(tmp_path / "areal.yaml")) == config


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert MetricsConfig.from_yaml(write(tmp_path, "# nothing\n")) == MetricsConfig()


def test_everything_survives_the_way_through_json(tmp_path: Path) -> None:
    config = MetricsConfig.make(write(tmp_path, EXAMPLE), token_count_fn=len)
    values = json.loads(json.dumps(config.to_dict()))
    assert MetricsConfig.make(values, token_count_fn=len) == config


def test_layers_win_key_by_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = {"every": 9, "moe_balance": {"expert_table_every": 7, "extended": True}, "ppo": False}
    monkeypatch.setenv("AREAL_CALLBACKS", json.dumps(environment))
    path = write(tmp_path, "every: 5\nmoe_balance: {expert_table_every: 3}\nreport: false\n")
    config = MetricsConfig.make(path, every=2, report=None)
    assert (config.every, config.report.enabled, config.ppo.enabled) == (2, False, False)
    assert config.moe_balance == MoEBalanceConfig(True, 3, "auto", True)
    assert MetricsConfig.from_environment().every == 9


def test_true_turns_a_section_on_with_the_settings_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_CALLBACKS", '{"moe_balance": {"expert_table_every": 7}}')
    assert MetricsConfig.make(moe_balance=True).moe_balance == MoEBalanceConfig(expert_table_every=7)
    assert not MetricsConfig.make(moe_balance=False).moe_balance.enabled
    assert MetricsConfig.make({"moe_balance": False}, moe_balance={"extended": True}).moe_balance.enabled


def test_a_complete_config_hides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_CALLBACKS", '{"every": 9}')
    config = MetricsConfig(token_count_fn=len)
    assert MetricsConfig.make(config) == config
    assert MetricsConfig.make(config, every=4).every == 4
    assert MetricsConfig.make(config, every=4).token_count_fn is len


def test_sections_can_be_objects_and_paths_are_strings() -> None:
    logger = StatsLoggerConfig(fileroot=Path("logs"), wandb=WandbConfig(project="p"))  # type: ignore[arg-type]
    config = MetricsConfig.make(moe_balance=MoEBalanceConfig(extended=True), stats_logger=logger, output_dir=Path("x"))
    assert config.moe_balance.extended
    assert config.output_dir == "x"
    assert config.stats_logger == StatsLoggerConfig(fileroot="logs", wandb=WandbConfig(project="p"))
    assert MetricsConfig(moe_balance=False).moe_balance == MoEBalanceConfig(enabled=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["online", "offline", "disabled", None])
def test_wandb_modes(mode: str | None) -> None:
    logger = MetricsConfig.make(stats_logger={"wandb": {"mode": mode}}).stats_logger
    assert logger is not None
    assert logger.wandb == WandbConfig(mode=mode)  # type: ignore[arg-type]


MISTAKES: list[tuple[dict[Any, Any], list[str]]] = [
    ({"every": 0}, ["every", "integer of at least 1", "got 0"]),
    ({"every": True}, ["every", "integer", "got True"]),
    ({"every": 1.5}, ["every", "integer", "got 1.5"]),
    ({"every": "1"}, ["every", "integer", "got '1'"]),
    ({"throughput": "yes"}, ["throughput", "true or false", "got 'yes'"]),
    ({"throughput": None}, ["throughput", "true or false", "got None"]),
    ({"throughput": 1}, ["throughput", "true or false", "got 1"]),
    ({"thruput": True}, ["thruput", "unknown key", "did you mean 'throughput'", "moe_balance"]),
    ({3: True}, ["3", "unknown key"]),
    ({"moe_balance": 3}, ["moe_balance", "true, false or a mapping", "expert_table_every", "got 3"]),
    ({"moe_balance": {"expert_table_evry": 3}}, ["moe_balance.expert_table_evry", "'expert_table_every'"]),
    ({"moe_balance": {"expert_table_every": 0}}, ["moe_balance.expert_table_every", "got 0"]),
    ({"moe_balance": {"per_expert_scalars": "aut"}}, ["moe_balance.per_expert_scalars", "did you mean 'auto'"]),
    ({"flops": {"peak_flops": -1}}, ["flops.peak_flops", "positive number or null", "got -1"]),
    ({"flops": {"peak_flops": float("inf")}}, ["flops.peak_flops", "got inf"]),
    ({"flops": {"peak_flops": "fast"}}, ["flops.peak_flops", "got 'fast'"]),
    ({"flops": {"peak_flops": True}}, ["flops.peak_flops", "got True"]),
    ({"ppo": {"extended": "on"}}, ["ppo.extended", "true or false", "got 'on'"]),
    ({"output_dir": 3}, ["output_dir", "string or null", "got 3"]),
    ({"stats_logger": True}, ["stats_logger", "mapping", "experiment_name", "got True"]),
    ({"stats_logger": {"experiment": "x"}}, ["stats_logger.experiment", "did you mean 'experiment_name'"]),
    (
        {"stats_logger": {"wandb": {"mode": "of-line"}}},
        ["stats_logger.wandb.mode", "online, offline, disabled, shared or null"],
    ),
    ({"stats_logger": {"wandb": {"mode": False}}}, ["stats_logger.wandb.mode", "got False"]),
    ({"stats_logger": {"wandb": {"projct": "p"}}}, ["stats_logger.wandb.projct", "did you mean 'project'"]),
    ({"stats_logger": {"wandb": {"tags": "one"}}}, ["stats_logger.wandb.tags", "list of strings", "got 'one'"]),
    ({"stats_logger": {"swanlab": {"mode": "remote"}}}, ["stats_logger.swanlab.mode", "local", "got 'remote'"]),
    ({"stats_logger": {"tensorboard": {"path": 1}}}, ["stats_logger.tensorboard.path", "got 1"]),
    ({"stats_logger": {"wandb": {"config": 3}}}, ["stats_logger.wandb.config", "a mapping or null", "got 3"]),
    (
        {"stats_logger": {"trackio": {"mode": "cloud"}}},
        ["stats_logger.trackio.mode", "online, local, disabled or null"],
    ),
    ({"stats_logger": {"per_expert_scalars": 1}}, ["stats_logger.per_expert_scalars", "true, false or auto"]),
    ({"stats_logger": {"trackio": []}}, ["stats_logger.trackio", "space_id", "got []"]),
]


@pytest.mark.parametrize("section", ["wandb", "swanlab"])
def test_neither_a_message_nor_the_configuration_shows_a_key(section: str) -> None:
    key = {"wandb": "wandb_api_key", "swanlab": "api_key"}[section]
    with pytest.raises(
        ValueError, match=f"{section}.{key}: expected a string or null, got a value of type int"
    ) as error:
        MetricsConfig.make(stats_logger={section: {key: 123456789}})
    assert "123456789" not in str(error.value)
    config = MetricsConfig.make(stats_logger={section: {key: "0123456789"}})
    assert "0123456789" not in f"{config!r} {config.to_dict()!r}"
    assert MetricsConfig.make(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(("values", "fragments"), MISTAKES, ids=[str(values) for values, _ in MISTAKES])
def test_a_mistake_names_source_key_value_and_choices(values: dict[Any, Any], fragments: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        MetricsConfig.make(values, source="accelerate.yaml")
    assert str(error.value).startswith("accelerate.yaml: ")
    for fragment in fragments:
        assert fragment in str(error.value)


def test_the_source_is_the_layer_that_holds_the_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(tmp_path, "every: 0")
    with pytest.raises(ValueError, match=r"areal\.yaml: every: .*got 0"):
        MetricsConfig.make(path, every=1)
    with pytest.raises(ValueError, match=r"^argument: every: .*got -1"):
        MetricsConfig.make({}, every=-1)
    monkeypatch.setenv("AREAL_CALLBACKS", '{"evry": 1}')
    with pytest.raises(ValueError, match=r"^environment variable AREAL_CALLBACKS: evry: unknown key; did you mean 'ev"):
        MetricsConfig.make(every=1)
    with pytest.raises(ValueError, match="environment variable AREAL_CALLBACKS"):
        MetricsConfig.from_environment()


def test_mistakes_in_constructors_are_found_at_once() -> None:
    with pytest.raises(ValueError, match="every: expected an integer of at least 1, got 0"):
        MetricsConfig(every=0)
    with pytest.raises(ValueError, match=r"moe_balance\.extended: expected true or false, got 1"):
        MetricsConfig(moe_balance={"extended": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wandb: expected a mapping"):
        StatsLoggerConfig(wandb=StatsLoggerConfig())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"token_count_fn: expected a function \(in Python only\) or null, got 3"):
        MetricsConfig.make(token_count_fn=3)
    with pytest.raises(ValueError, match="expected a MetricsConfig, a mapping or the path of a YAML file, got 5"):
        MetricsConfig.make(5)  # type: ignore[arg-type]


def test_a_function_cannot_come_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token_count_fn: expected a function \(in Python only\) or null, got 'len'"):
        MetricsConfig.from_yaml(write(tmp_path, "token_count_fn: len"))


def test_layers_are_combined_in_order_and_null_is_a_value() -> None:
    layers = [
        Layer("lowest", {"every": 2, "output_dir": "a", "moe_balance": {"extended": True}}),
        Layer("middle", {"every": 3, "moe_balance": {"expert_table_every": 4}}),
        Layer("highest", {"output_dir": None}),
    ]
    config = MetricsConfig.combine(layers)
    assert (config.every, config.output_dir) == (3, None)
    assert config.moe_balance == MoEBalanceConfig(True, 4, "auto", True)
    with pytest.raises(ValueError, match=r"^middle: every: .*got 0"):
        MetricsConfig.combine([layers[0], Layer("middle", {"every": 0}), layers[2]])


@pytest.mark.parametrize(
    ("options", "ranks", "flops", "told"),
    [({}, 1, True, 0), ({}, 2, False, 1), ({"flops": False}, 2, False, 0)],
)
def test_parts_of_sequences_have_no_flops(options, ranks, flops, told, caplog) -> None:
    config = MetricsConfig.make(every=3, **options)
    changed = config.for_split_sequences(ranks)
    assert changed == replace(config, flops=FlopsConfig(enabled=flops))
    config.for_split_sequences(ranks)
    assert sum("FLOPs are left out" in message for message in caplog.messages) == told


def test_the_keyword_arguments_are_the_keys_of_the_configuration() -> None:
    assert list(MetricsOptions.__annotations__) == [field.name for field in fields(MetricsConfig)]


def test_an_empty_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_CALLBACKS", " ")
    assert MetricsConfig.make() == MetricsConfig()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.sampled_from(["auto", "online", "x"]),
    lambda children: (
        st.lists(children, max_size=2)
        | st.dictionaries(
            st.sampled_from(["enabled", "extended", "peak_flops", "wandb", "mode", "z"]), children, max_size=3
        )
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(sorted(MetricsConfig().to_dict()))


@settings(deadline=None)
@given(st.dictionaries(KEYS, JSON_VALUES, max_size=4))
def test_any_mapping_is_either_refused_by_name_or_makes_the_round_trip(values: dict[str, Any]) -> None:
    message = ""
    try:
        config = MetricsConfig.make(values, source="here")
    except ValueError as error:
        message = str(error)
    if message:
        assert message.startswith(tuple(f"here: {key}" for key in values))
    else:
        assert MetricsConfig.make(json.loads(json.dumps(config.to_dict()))) == config


def test_the_configuration_loads_neither_torch_nor_yaml() -> None:
    code = "import areal_callbacks.config, sys; sys.exit(not {'torch', 'yaml'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
