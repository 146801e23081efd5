"""AReaL's training metrics for the trainer that you already use.

Importing this package loads neither torch nor any framework or tracker: the names below are resolved on first use.
They are described in ``docs/api.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_callbacks import stats_tracker, workflow_context
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.core.flat_loads import split_expert_loads
    from areal_callbacks.core.merge import merge_worker_stats
    from areal_callbacks.core.types import Export, ReduceType
    from areal_callbacks.flops.registry import get_flops_estimator, register_flops_estimator
    from areal_callbacks.integrations.fsdp import track
    from areal_callbacks.monitors.moe_balance.contracts import register_router_contract
    from areal_callbacks.ppo.batch import PolicyBatch
    from areal_callbacks.ppo.clip import Clip
    from areal_callbacks.ppo.diagnostics import PolicyDiagnostics
    from areal_callbacks.ppo.update import PolicyUpdate
    from areal_callbacks.report.shown import show_report
    from areal_callbacks.session import MetricsSession
    from areal_callbacks.stats_logger import StatsLogger
    from areal_callbacks.topology import Topology
    from areal_callbacks.writers.jsonl import read_metrics

__version__ = "0.2.0"

__all__ = [
    "Clip",
    "Export",
    "MetricsConfig",
    "MetricsSession",
    "PolicyBatch",
    "PolicyDiagnostics",
    "PolicyUpdate",
    "ReduceType",
    "StatsLogger",
    "Topology",
    "__version__",
    "get_flops_estimator",
    "merge_worker_stats",
    "read_metrics",
    "register_flops_estimator",
    "register_router_contract",
    "show_report",
    "split_expert_loads",
    "stats_tracker",
    "track",
    "workflow_context",
]

_HOMES = {
    "Clip": "ppo.clip",
    "Export": "core.types",
    "MetricsConfig": "config",
    "MetricsSession": "session",
    "PolicyBatch": "ppo.batch",
    "PolicyDiagnostics": "ppo.diagnostics",
    "PolicyUpdate": "ppo.update",
    "ReduceType": "core.types",
    "StatsLogger": "stats_logger",
    "Topology": "topology",
    "get_flops_estimator": "flops.registry",
    "merge_worker_stats": "core.merge",
    "read_metrics": "writers.jsonl",
    "register_flops_estimator": "flops.registry",
    "register_router_contract": "monitors.moe_balance.contracts",
    "show_report": "report.shown",
    "split_expert_loads": "core.flat_loads",
    "track": "integrations.fsdp",
}
_MODULES = ("stats_tracker", "workflow_context")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
