"""What a tracker must export, by keeping every number and every mask and looking at all of them at the end, in NumPy.

The pairs are AReaL's, the i-th value of a key with the i-th mask of its denominator, but for what
``docs/coming_from_areal.md`` lists: a value without a mask of its own takes the latest, and a mask that a tracker of
constant memory cannot keep is replaced by the oldest that it keeps. Which masks those are is derived here from the
times of all calls.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np


class TrackerModel:
    """One rank's tracker. Keys are full keys; ``entries`` holds key → (kind, group, values)."""

    def __init__(self) -> None:
        self._now = 0
        self._clear()

    def _clear(self) -> None:
        self.entries: dict[str, tuple[str, object, list[float]]] = {}
        self._masks: dict[str, list[_Mask]] = defaultdict(list)
        self._numbers: dict[str, int] = defaultdict(int)

    def scalar(self, key: str, value: float, group: object = None) -> None:
        self._add(key, "SCALAR", [value], group)

    def denominator(self, key: str, mask: list[bool], group: object = None) -> None:
        self._now += 1
        self._masks[key].append(_Mask(mask, self._now))
        self._add(key, "DENOMINATOR", [1.0] * sum(mask), group)

    def stat(self, key: str, candidates: Iterable[str], kind: str, values: list[float], group: object = None) -> bool:
        """False where a tracker must raise: none of the denominators has a mask."""
        masks = next((self._masks[name] for name in candidates if any(m.known for m in self._masks[name])), None)
        if masks is None:
            return False
        self._now += 1
        held = [number for number in range(len(masks)) if masks[number].known and not _dropped(masks, number)]
        number = self._numbers[key]
        taken = min(max(number, held[0]), held[-1])
        self._numbers[key] = max(number, taken) + 1
        masks[taken].used.append(self._now)
        self._add(key, kind, [value for value, chosen in zip(values, masks[taken].values) if chosen], group)
        return True

    def reset(self, key: str | None = None) -> None:
        """What follows an export of everything, or of one key."""
        if key is None:
            self._clear()
        else:
            self.entries.pop(key, None)
            for mask in self._masks[key]:
                mask.known = False

    def _add(self, key: str, kind: str, values: list[float], group: object) -> None:
        _, known, numbers = self.entries.get(key, (kind, None, []))
        self.entries[key] = (kind, known if group is None else group, numbers + values)


class _Mask:
    def __init__(self, values: list[bool], given: int) -> None:
        self.values, self.given, self.known = values, given, True
        self.used: list[int] = []


def _dropped(masks: list[_Mask], number: int) -> bool:
    """A later mask was used, and either this one had been used before its successor came, or one more came since."""
    later_uses = [time for mask in masks[number + 1 :] for time in mask.used]
    settled = any(time < masks[number + 1].given for time in masks[number].used) if later_uses else False
    return any(settled or any(mask.given > time for mask in masks) for time in later_uses)


def pooled(ranks: Iterable[Mapping[str, tuple[str, object, list[float]]]]) -> dict[str, tuple[str, list[float]]]:
    """Key → (kind, values of all ranks)."""
    together: dict[str, tuple[str, list[float]]] = {}
    for entries in ranks:
        for key, (kind, _, values) in entries.items():
            together[key] = kind, together.get(key, (kind, []))[1] + values
    return together


def metrics(entries: Mapping[str, tuple[str, list[float]]]) -> dict[str, float]:
    """What an export of these values holds."""
    exported: dict[str, float] = {}
    for key, (kind, values) in entries.items():
        exported.update(_statistics(key, kind, np.array(values, dtype=np.float64)))
    return exported


def filled(mine: Mapping[str, float], everywhere: Mapping[str, tuple[str, list[float]]]) -> dict[str, float]:
    """The same with every key that any rank exports: 0 for sums and counts of nothing, NaN for all else."""
    empty = metrics({key: (kind, []) for key, (kind, _) in everywhere.items()})
    names = metrics(everywhere)
    return {name: mine.get(name, empty.get(name, 0.0 if name.endswith("__count") else math.nan)) for name in names}


def _statistics(key: str, kind: str, values: np.ndarray) -> dict[str, float]:
    with np.errstate(invalid="ignore"):
        if kind == "DENOMINATOR":
            return {key: float(values.size)}
        if kind == "SUM":
            return {key: values.sum()}
        if not values.size:
            return {}
        if kind == "AVG_MIN_MAX":
            return {f"{key}/avg": values.mean(), f"{key}/min": values.min(), f"{key}/max": values.max()}
        if kind == "SCALAR":
            return {key: values.mean(), f"{key}__count": float(values.size)}
        return {key: {"AVG": np.mean, "MIN": np.min, "MAX": np.max}[kind](values)}
