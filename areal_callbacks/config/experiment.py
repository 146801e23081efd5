"""The ``stats_logger`` section of whatever describes an experiment: a file, a mapping, or a configuration of AReaL."""

from __future__ import annotations

import os
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple

from areal_callbacks.config.files import expect_mapping, read_yaml
from areal_callbacks.config.interpolation import resolve
from areal_callbacks.config.sections import ConfigError
from areal_callbacks.config.trackers import StatsLoggerConfig

_SECTION = "stats_logger"


class Experiment(NamedTuple):
    """An experiment's configuration.

    Attributes:
        stats_logger: its section.
        settings: what the run shows in trackers.
    """

    stats_logger: StatsLoggerConfig
    settings: dict[str, Any]


def read_experiment(config: Any) -> Experiment:
    """Read the section, with its ``${…}`` resolved against the whole.

    Args:
        config: a :class:`StatsLoggerConfig`; a mapping of its keys; a mapping or dataclass that holds one as
            ``stats_logger``, such as AReaL's experiment configuration, whose other keys are shown in the trackers, too;
            or the path of a YAML file, of which the section alone is shown.

    Raises:
        ValueError: an unknown key or a bad value, with the choices; a file without the section.
    """
    if isinstance(config, StatsLoggerConfig):
        return Experiment(config, {_SECTION: config.to_dict()})
    if isinstance(config, str | os.PathLike):
        source = os.fspath(config)
        document = read_yaml(source)
        if _SECTION not in document:
            raise ValueError(f"{source}: this file has no {_SECTION} section")
        section = _parse(resolve(document[_SECTION], document, source), source)
        return Experiment(section, {_SECTION: section.to_dict()})
    return _read_object(config)


def _read_object(config: Any) -> Experiment:
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    whole = expect_mapping(values, f"argument: {_SECTION}")
    settings = whole if _SECTION in whole else {}
    section = _parse(resolve(settings.get(_SECTION, whole), whole, "argument"), "argument")
    return Experiment(section, {**settings, _SECTION: section.to_dict()})


def _parse(values: Any, source: str) -> StatsLoggerConfig:
    try:
        return StatsLoggerConfig.parse(expect_mapping(values, f"{source}: {_SECTION}"))
    except ConfigError as error:
        raise ValueError(f"{source}: {error.below(_SECTION)}") from None
