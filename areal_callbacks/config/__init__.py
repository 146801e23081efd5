"""What is measured and where it goes: the options, the checks of their values, and where they are read from."""

from areal_callbacks.config.files import ENVIRONMENT_VARIABLE
from areal_callbacks.config.options import (
    FlopsConfig,
    MetricsConfig,
    MetricsOptions,
    MoEBalanceConfig,
    PPOConfig,
    ReportConfig,
)
from areal_callbacks.config.sections import ConfigError, Section
from areal_callbacks.config.trackers import StatsLoggerConfig

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "ConfigError",
    "FlopsConfig",
    "MetricsConfig",
    "MetricsOptions",
    "MoEBalanceConfig",
    "PPOConfig",
    "ReportConfig",
    "Section",
    "StatsLoggerConfig",
]
