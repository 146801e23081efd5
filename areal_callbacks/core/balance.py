"""How evenly the routed assignments of one layer are spread over its experts. Loads no torch.

With the assignments ``c_e`` of ``E`` experts, the ideal load is ``sum(c) / E``. Source of both formulas of AReaL's,
:func:`max_over_ideal` and :func:`load_percentages`: its specification of the MoE balance.
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


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the others lie, between two of them by linear interpolation, as in NumPy.

    Args:
        values: at least one, in any order.
        share: 0 for the smallest, 1 for the largest.
    """
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def count_starved(counts: Sequence[int]) -> int:
    """Experts with less than a tenth of the ideal load, dead ones among them; 0 for an empty layer.

    With a tenth of the tokens an expert gets a tenth of the gradients of its equals.

    Args:
        counts: assignments per expert.
    """
    total = sum(counts)
    return sum(10 * count * len(counts) < total for count in counts)


def load_percentages(counts: Sequence[int]) -> list[float]:
    """``100 * c / sum(c)`` of every expert; zeros for an empty layer.

    Args:
        counts: assignments per expert.
    """
    total = sum(counts)
    percent = 100.0 / total if total else 0.0
    return [count * percent for count in counts]
