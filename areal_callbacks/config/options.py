"""What is measured and where it goes: dataclasses filled from Python, a mapping, a YAML file or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from areal_callbacks.config.files import Layer, read_environment, read_yaml
from areal_callbacks.config.messages import show
from areal_callbacks.config.sections import ConfigError, Section, Switch, merge, spread
from areal_callbacks.config.trackers import StatsLoggerConfig
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import make_printable

_ARGUMENT = "argument"
_NOT_PLAIN = ("token_count_fn", "on_finding")


@dataclass(frozen=True)
class MoEBalanceConfig(Switch):
    """Routed loads per layer and expert.

    Attributes:
        expert_table_every: exports between two expert tables; a later table sums the counts since the one before.
        per_expert_scalars: two series per expert in SwanLab and Trackio; ``"auto"``: up to 128 series in a run of the
            host, and as ``stats_logger.per_expert_scalars`` says in our own.
        extended: also the coefficient of variation and the normalised entropy of every layer.
    """

    expert_table_every: int = 1
    per_expert_scalars: bool | Literal["auto"] = "auto"
    extended: bool = False


@dataclass(frozen=True)
class FlopsConfig(Switch):
    """Estimated FLOPs.

    Attributes:
        peak_flops: FLOP/s of one device at the training precision; None: known devices only.
        fallback: ``"active_parameters"`` estimates models without a formula, and labels that as approximate.
        frozen: ``"full"`` counts frozen weights like trained ones, ``"skip_weight_gradient"`` what they need.
    """

    peak_flops: float | None = None
    fallback: Literal["active_parameters"] | None = None
    frozen: Literal["full", "skip_weight_gradient"] = "full"

    @property
    def is_default(self) -> bool:
        """Nothing was configured: FLOPs were not asked for by name."""
        return self == FlopsConfig()


@dataclass(frozen=True)
class PPOConfig(Switch):
    """PPO diagnostics; ``extended``: also those beyond AReaL's own list."""

    extended: bool = True


@dataclass(frozen=True)
class ReportConfig(Switch):
    """The HTML report; ``every``: exports between two rewrites while the run goes on, None: only at the end."""

    every: int | None = None


@dataclass(frozen=True)
class MetricsConfig(Section):
    """Everything that can be configured; complete and checked once it exists.

    Attributes:
        throughput: tokens, seconds and their rates.
        moe_balance: routed loads; a bool or a mapping turns into the section.
        flops: estimated FLOPs and their rates.
        ppo: PPO diagnostics, where the host gives their inputs.
        every: optimizer steps from one export to the next, at least; it joins the next row that the host logs.
        resume_totals: restore the cumulative counters from the host's checkpoint.
        output_dir: folder of metrics.jsonl and the report; None: beside the host's output.
        report: write report.html at the end, and perhaps now and then before.
        console: what the terminal shows of our numbers in the host's own rows: ``compact``: at most six, in words;
            ``full``: all; ``off``: none, and no summary at the end.
        include: glob patterns of the names that hosts and trackers get; none: all. ``*`` matches ``/`` too.
        exclude: likewise of those that they do not get.
        per_layer: hosts and trackers get the series of single layers.
        alerts: findings become alerts in W&B and Trackio, each once.
        on_finding: called with every :class:`~areal_callbacks.findings.Finding` once, on a background thread of the
            writing rank; in Python only.
        stats_logger: trackers for loops without a logger of their own.
        token_count_fn: given the arguments of a training forward, returns the sequence lengths of the batch, for inputs
            whose lengths cannot be read; in Python only.
    """

    throughput: bool = True
    moe_balance: MoEBalanceConfig = MoEBalanceConfig()
    flops: FlopsConfig = FlopsConfig()
    ppo: PPOConfig = PPOConfig()
    every: int = 1
    resume_totals: bool = False
    output_dir: str | None = None
    report: ReportConfig = ReportConfig()
    console: Literal["compact", "full", "off"] = "compact"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_layer: bool = True
    alerts: bool = False
    on_finding: Callable[..., Any] | None = None
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
            config: a mapping, the path of a YAML file, or a MetricsConfig, which is complete: the environment is not
                read then.
            source: where a mapping came from, for error messages.
            **overrides: the same keys; None means not given.

        Raises:
            ValueError: names the source, the dotted key, the bad value and what is valid.
        """
        layers = [] if isinstance(config, MetricsConfig) else [read_environment()]
        if config is not None:
            layers.append(_read(config, source))
        layers.append(Layer(_ARGUMENT, {key: value for key, value in overrides.items() if value is not None}))
        return cls.combine(layers)

    @classmethod
    def combine(cls, layers: Iterable[Layer]) -> MetricsConfig:
        """All layers, later ones win key by key; ValueError as :meth:`make`, with the source of the layer at fault."""
        combined: dict[str, Any] = {}
        for layer in layers:
            _check(layer)
            combined = merge(combined, spread(cls, layer.values))
        return cls.parse(combined)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> MetricsConfig:
        """The file alone, without the environment; ValueError as :meth:`make`."""
        return _check(Layer(os.fspath(path), read_yaml(path)))

    @classmethod
    def from_environment(cls) -> MetricsConfig:
        """The JSON object in ``AREAL_CALLBACKS``, or the defaults without it; ValueError as :meth:`make`."""
        return _check(read_environment())

    def for_split_sequences(self, ranks: int) -> MetricsConfig:
        """What can be measured where ``ranks`` ranks hold a part of each sequence: for more than one, no FLOPs.

        FLOPs are a sum over whole sequences, whose lengths no rank knows then. One message says so.
        """
        if ranks <= 1 or not self.flops.enabled:
            return self
        report_once(
            "config:split_sequences",
            "sequence parallelism hands every rank a part of each sequence: FLOPs are left out",
        )
        return replace(self, flops=FlopsConfig(enabled=False))

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable values of all keys but the functions, accepted again by ``make``."""
        values = super().to_dict()
        return {key: value for key, value in values.items() if key not in _NOT_PLAIN}


class MetricsOptions(TypedDict, total=False):
    """The keys of :class:`MetricsConfig` as keyword arguments; see there."""

    throughput: bool
    moe_balance: bool | Mapping[str, Any]
    flops: bool | Mapping[str, Any]
    ppo: bool | Mapping[str, Any]
    every: int
    resume_totals: bool
    output_dir: str | Path | None
    report: bool | Mapping[str, Any]
    console: Literal["compact", "full", "off"]
    include: Sequence[str]
    exclude: Sequence[str]
    per_layer: bool
    alerts: bool
    on_finding: Callable[..., Any] | None
    stats_logger: Mapping[str, Any] | None
    token_count_fn: Callable[..., Any] | None


def _check(layer: Layer) -> MetricsConfig:
    """The layer on its own, so that an error names the layer that holds it."""
    try:
        return MetricsConfig.parse(layer.values)
    except ConfigError as error:
        raise ValueError(f"{make_printable(layer.source)}: {error}") from None


def _read(config: MetricsConfig | Mapping[str, Any] | str | os.PathLike[str], source: str) -> Layer:
    if isinstance(config, MetricsConfig):
        return Layer(source, {**config.to_dict(), **{key: getattr(config, key) for key in _NOT_PLAIN}})
    if isinstance(config, Mapping):
        return Layer(source, config)
    if isinstance(config, str | os.PathLike):
        return Layer(os.fspath(config), read_yaml(config))
    raise ValueError(
        f"{source}: config: expected a MetricsConfig, a mapping or the path of a YAML file, got {show(config)}"
    )
