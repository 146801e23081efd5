"""What is measured and where it goes: dataclasses filled from Python, a mapping, a YAML file or the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import yaml

from areal_callbacks.config.sections import ConfigError, Section, Switch, merge, spread

ENVIRONMENT_VARIABLE = "AREAL_CALLBACKS"

_ARGUMENT = "argument"
_PYTHON_ONLY = "token_count_fn"


@dataclass(frozen=True)
class MoEBalanceConfig(Switch):
    """Routed loads per layer and expert.

    Attributes:
        expert_table_every: exports between two expert tables; a later table sums the counts since the one before.
        per_expert_scalars: one series per expert where a tracker has no tables; ``"auto"``: up to 1,024 series.
        extended: also the coefficient of variation and the normalised entropy of every layer.
    """

    expert_table_every: int = 1
    per_expert_scalars: bool | Literal["auto"] = "auto"
    extended: bool = False


@dataclass(frozen=True)
class FlopsConfig(Switch):
    """Estimated FLOPs; ``peak_flops``: FLOP/s of one device at the training precision, None = known devices."""

    peak_flops: float | None = None


@dataclass(frozen=True)
class PPOConfig(Switch):
    """PPO diagnostics; ``extended``: also those beyond AReaL's own list."""

    extended: bool = True


@dataclass(frozen=True)
class WandbConfig(Section):
    """Weights & Biases; mode None leaves the choice to ``WANDB_MODE``. Keys are those of ``wandb.init``."""

    mode: Literal["online", "offline", "disabled"] | None = None
    project: str | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SwanlabConfig(Section):
    """SwanLab; ``cloud`` is its own word for online, mode None leaves the choice to SwanLab."""

    mode: Literal["online", "cloud", "local", "offline", "disabled"] | None = None
    project: str | None = None
    name: str | None = None
    workspace: str | None = None
    logdir: str | None = None


@dataclass(frozen=True)
class TrackioConfig(Section):
    """Trackio; without ``space_id`` everything stays on this machine."""

    project: str | None = None
    name: str | None = None
    group: str | None = None
    space_id: str | None = None


@dataclass(frozen=True)
class TensorBoardConfig(Section):
    """TensorBoard; ``path`` None is off."""

    path: str | None = None


@dataclass(frozen=True)
class StatsLoggerConfig(Section):
    """Trackers of loops without a logger of their own, as in AReaL; a tracker that is None is off."""

    experiment_name: str = "areal"
    trial_name: str = "trial"
    fileroot: str = "./logs"
    wandb: WandbConfig | None = None
    swanlab: SwanlabConfig | None = None
    trackio: TrackioConfig | None = None
    tensorboard: TensorBoardConfig | None = None

    @property
    def folder(self) -> Path:
        """``<fileroot>/<experiment_name>/<trial_name>``, where the files of the run lie."""
        return Path(self.fileroot, self.experiment_name, self.trial_name)


@dataclass(frozen=True)
class MetricsConfig(Section):
    """Everything that can be configured; complete and checked once it exists.

    Attributes:
        throughput: tokens, seconds and their rates.
        moe_balance: routed loads; a bool or a mapping turns into the section.
        flops: estimated FLOPs and their rates.
        ppo: PPO diagnostics, where the host gives their inputs.
        every: logging events of the host between two exports.
        resume_totals: restore the cumulative counters from the host's checkpoint.
        output_dir: folder of metrics.jsonl and the report; None: beside the host's output.
        report: write report.html at the end.
        stats_logger: trackers for loops without a logger of their own.
        token_count_fn: how many tokens a batch holds, for inputs that the attention mask does not tell; Python only.
    """

    throughput: bool = True
    moe_balance: MoEBalanceConfig = MoEBalanceConfig()
    flops: FlopsConfig = FlopsConfig()
    ppo: PPOConfig = PPOConfig()
    every: int = 1
    resume_totals: bool = False
    output_dir: str | None = None
    report: bool = True
    stats_logger: StatsLoggerConfig | None = None
    token_count_fn: Callable[..., Any] | None = None

    @classmethod
    def make(
        cls,
        config: MetricsConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        source: str = _ARGUMENT,
        **overrides: Any,
    ) -> MetricsConfig:
        """Layers, later ones win key by key: the environment, ``config``, ``overrides``.

        Args:
            config: a mapping, the path of a YAML file, or a MetricsConfig, which is complete: the environment then
                adds nothing.
            source: where a mapping came from, for error messages.
            **overrides: the same keys; None means not given.

        Raises:
            ValueError: names the source, the dotted key, the bad value and what is valid.
        """
        layers: list[_Layer] = []
        if not isinstance(config, MetricsConfig):
            layers.append(_read_environment())
        if config is not None:
            layers.append(_read(config, source))
        layers.append(_Layer(_ARGUMENT, {key: value for key, value in overrides.items() if value is not None}))
        merged: dict[str, Any] = {}
        for layer in layers:
            _checked(layer)
            merged = merge(merged, spread(cls, layer.values))
        return cls.parse(merged)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> MetricsConfig:
        """The file alone, without the environment; ValueError as ``make``."""
        return _checked(_read_yaml(path))

    @classmethod
    def from_environment(cls) -> MetricsConfig:
        """The JSON object in ``AREAL_CALLBACKS``, or the defaults without it; ValueError as ``make``."""
        return _checked(_read_environment())

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable values of all keys but ``token_count_fn``, accepted again by ``make``."""
        values = super().to_dict()
        del values[_PYTHON_ONLY]
        return values


class MetricsOptions(TypedDict, total=False):
    """The keys of :class:`MetricsConfig` as keyword arguments; see there."""

    throughput: bool
    moe_balance: bool | Mapping[str, Any]
    flops: bool | Mapping[str, Any]
    ppo: bool | Mapping[str, Any]
    every: int
    resume_totals: bool
    output_dir: str | Path | None
    report: bool
    stats_logger: Mapping[str, Any] | None
    token_count_fn: Callable[..., Any] | None


class _Layer(NamedTuple):
    source: str
    values: Mapping[str, Any]


def _checked(layer: _Layer) -> MetricsConfig:
    """The layer on its own, so that an error names the layer that holds it."""
    try:
        return MetricsConfig.parse(layer.values)
    except ConfigError as error:
        raise ValueError(f"{layer.source}: {error}") from None


def _read(config: MetricsConfig | Mapping[str, Any] | str | os.PathLike[str], source: str) -> _Layer:
    if isinstance(config, MetricsConfig):
        return _Layer(source, {**config.to_dict(), _PYTHON_ONLY: config.token_count_fn})
    if isinstance(config, Mapping):
        return _Layer(source, config)
    if isinstance(config, str | os.PathLike):
        return _read_yaml(config)
    raise ValueError(
        f"{source}: config: expected a MetricsConfig, a mapping or the path of a YAML file, got {config!r}"
    )


def _read_yaml(path: str | os.PathLike[str]) -> _Layer:
    source = os.fspath(path)
    try:
        document = yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{source}: cannot read this configuration file: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{source}: malformed YAML: {error}") from None
    return _document(source, {} if document is None else document)


def _read_environment() -> _Layer:
    source = f"environment variable {ENVIRONMENT_VARIABLE}"
    text = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    try:
        return _document(source, json.loads(text) if text else {})
    except json.JSONDecodeError as error:
        raise ValueError(f"{source}: malformed JSON: {error}; got {text!r}") from None


def _document(source: str, values: object) -> _Layer:
    if not isinstance(values, Mapping):
        raise ValueError(f"{source}: expected a mapping of keys to values, got {values!r}")  # noqa: TRY004
    if _PYTHON_ONLY in values:
        raise ValueError(f"{source}: {_PYTHON_ONLY}: can be given in Python only, got {values[_PYTHON_ONLY]!r}")
    return _Layer(source, values)
