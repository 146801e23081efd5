"""The independent recount against an export of the package, for tests of any training."""

from __future__ import annotations

from typing import Any

from areal_callbacks.verify import Recount, Totals

__all__ = ["Recount", "loads_of", "routed_of", "tokens_of"]


def tokens_of(export: Any) -> int:
    """Tokens of an export; 0 where it has none."""
    return int(export.metrics.get("train_perf/tokens", 0))


def loads_of(export: Any) -> dict[tuple[str, int], list[int]]:
    """Assignments by layer, of the layers that had any."""
    loads = export.expert_loads or ()
    return {(layer.stack, layer.layer): layer.counts.tolist() for layer in loads if bool(layer.counts.any())}


def routed_of(totals: Totals) -> dict[tuple[str, int], list[int]]:
    """The recount's assignments by layer, of the layers that had any."""
    return {layer: counts for layer, counts in totals.routed.items() if any(counts)}
