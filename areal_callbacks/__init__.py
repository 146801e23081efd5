"""AReaL's training metrics for the trainer that you already use.

Importing this package loads neither torch nor any framework or tracker: the names below are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_callbacks import stats_tracker, workflow_context
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.core.types import Export, ReduceType
    from areal_callbacks.flops.registry import get_flops_estimator, register_flops_estimator
    from areal_callbacks.session import MetricsSession
    from areal_callbacks.stats_logger import StatsLogger
    from areal_callbacks.topology import Topology

__version__ = "0.1.0"

__all__ = [
    "Export",
    "MetricsConfig",
    "MetricsSession",
    "ReduceType",
    "StatsLogger",
    "Topology",
    "__version__",
    "get_flops_estimator",
    "register_flops_estimator",
    "stats_tracker",
    "workflow_context",
]

_HOMES = {
    "Export": "core.types",
    "MetricsConfig": "config",
    "MetricsSession": "session",
    "ReduceType": "core.types",
    "StatsLogger": "stats_logger",
    "Topology": "topology",
    "get_flops_estimator": "flops.registry",
    "register_flops_estimator": "flops.registry",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in ("stats_tracker", "workflow_context"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
