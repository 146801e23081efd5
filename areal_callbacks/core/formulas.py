"""Metrics that are derived from sums: quantiles, an effective sample size, a standard error.

Such a number cannot be averaged over batches or ranks, but the sums that it follows from can be added. A
:class:`Formula` names both: how many sums there are and what they say. A tracker adds the sums over batches, a
reduction adds them over ranks and intervals, and whoever turns records into metrics derives the numbers last; the sums
themselves never reach a logger.

    @formula(width=2)
    def root_mean_square(sums):                       # a module-level function: its import path is its name
        count, squares = sums
        return {"rms": math.sqrt(squares / count)} if count else {}

    tracker.sums(root_mean_square, torch.stack((mask.sum().double(), x[mask].double().square().sum())), "loss")
    tracker.export(reduce_group=group)                # {"loss/rms": ...}

Records carry the import path with the sums, so that a rank that recorded nothing derives the same numbers as the
others.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

Derive: TypeAlias = Callable[[list[float]], Mapping[str, float]]

_SEPARATOR = " of "


@dataclass(frozen=True)
class Formula:
    """What a vector of sums says.

    Attributes:
        path: where to import it from, ``module:name``.
        width: number of sums.
        derive: the reduced sums → name → number; what they cannot tell (an empty population, say) is left out.
    """

    path: str
    width: int
    derive: Derive


def formula(width: int) -> Callable[[Derive], Formula]:
    """Make a module-level function of ``width`` sums a :class:`Formula`."""

    def decorate(function: Derive) -> Formula:
        return Formula(f"{function.__module__}:{function.__qualname__}", width, function)

    return decorate


class FormulaSums:
    """The running sums of one tracker; constant memory. Not thread-safe: its tracker holds the lock."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Tensor] = {}

    def add(self, rule: Formula, key: str, sums: Tensor) -> None:
        """Add ``sums``, a float64 ``[rule.width]``, to those of ``key``."""
        total = self._sums.get((rule.path, key))
        self._sums[rule.path, key] = sums.detach().clone() if total is None else total.to(sums.device) + sums.detach()

    def take(self, key: str | None, reset: bool) -> dict[str, Tensor]:
        """Name → sums of everything, or of ``key`` alone; forget them if ``reset``."""
        taken = {name: total for name, total in self._sums.items() if key is None or name[1] == key}
        if reset:
            self._sums = {name: total for name, total in self._sums.items() if name not in taken}
        return {_SEPARATOR.join(name): total for name, total in taken.items()}


def derive_all(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """The metrics of reduced sums, under the keys that they were recorded with; one that fails is reported once."""
    metrics: dict[str, float] = {}
    for name, vector in sums.items():
        path, _, key = name.partition(_SEPARATOR)
        try:
            rule: Formula = pkgutil.resolve_name(path)
            values = rule.derive(vector.tolist())
        except Exception as error:  # noqa: BLE001 - one formula must not cost the other metrics
            report_once(f"formula:{path}", f"{key or path!r} could not be derived and is left out: {tell_error(error)}")
            continue
        metrics.update({f"{key}/{suffix}" if key else suffix: value for suffix, value in values.items()})
    return metrics
