"""How evenly the routed assignments of one layer are spread over its experts. Loads no torch.

With the assignments ``c_e`` of ``E`` experts, the ideal load is ``sum(c) / E``.
"""

from __future__ import annotations

from collections.abc import Sequence


def max_over_ideal(counts: Sequence[int]) -> float:
    """``max(c) / (sum(c) / E)``: 1 is perfect balance, ``E`` a single busy expert; 0 for an empty layer.

    Args:
        counts: assignments per expert.
    """
    total = sum(counts)
    return max(counts) * len(counts) / total if total else 0.0


def load_percentages(counts: Sequence[int]) -> list[float]:
    """``100 * c / sum(c)`` of every expert; zeros for an empty layer.

    Args:
        counts: assignments per expert.
    """
    total = sum(counts)
    percent = 100.0 / total if total else 0.0
    return [count * percent for count in counts]
