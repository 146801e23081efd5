"""Running summaries of one tracker: numbers in Python, tensors in one growing block per device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

import torch
from torch import Tensor

from areal_callbacks.core.records import Key, Records, output_names, pool
from areal_callbacks.core.summary import EMPTY, empty_rows, merge_rows_
from areal_callbacks.core.types import ReduceType

_FIRST_ROWS = 4


class Accumulator:
    """Holds one summary per key, whatever the number of values. Not thread-safe: its tracker holds the lock."""

    def __init__(self) -> None:
        self._kinds: dict[str, ReduceType] = {}
        self._names: dict[str, str] = {}
        self._scalars: dict[str, list[float]] = {}
        self._blocks: dict[torch.device, _Block] = {}

    def add_scalar(self, key: str, value: float | Tensor) -> None:
        """Fold one number into the scalar ``key``."""
        if value.__class__ is not float:
            if isinstance(value, Tensor):
                self.add_rows(ReduceType.SCALAR, {key: _scalar_row(key, value)})
                return
            if not isinstance(value, Real) and not hasattr(value, "__float__"):
                raise ValueError(f"scalar {key!r} must be a real number, got {type(value).__name__}")
            value = float(value)
        summary = self._scalars.get(key)
        if summary is None:
            self._claim({key: ReduceType.SCALAR})
            summary = self._scalars[key] = list(EMPTY)
        summary[0] += value
        summary[1] += 1.0

    def add_rows(self, reduce_type: ReduceType, rows: Mapping[str, Tensor]) -> None:
        """Fold ready summaries ``[4]`` into their keys; all or, on a conflict of kinds, none."""
        self._claim(dict.fromkeys(rows, reduce_type))
        for key, row in rows.items():
            block = self._blocks.get(row.device)
            if block is None:
                block = self._blocks[row.device] = _Block(row.device)
            block.add(key, row)

    def take(self, key: str | None, reset: bool) -> Records:
        """Everything recorded, or only ``key``, and forget it if ``reset``."""
        keys = list(self._kinds) if key is None else [key] if key in self._kinds else []
        records = pool([self._scalar_records(keys), *(block.records(keys, self._kinds) for block in self._blocks.values())])
        if reset and key is None:
            self._kinds, self._names, self._scalars, self._blocks = {}, {}, {}, {}
        elif reset:
            for name in keys:
                self._forget(name)
        return records

    def _scalar_records(self, keys: list[str]) -> Records:
        present = [key for key in keys if key in self._scalars]
        rows = [self._scalars[key] for key in present]
        return Records(tuple((key, ReduceType.SCALAR) for key in present), _as_rows(rows))

    def _claim(self, keys: Mapping[str, ReduceType]) -> None:
        """Reserve the keys and the names that they export, or raise and reserve none."""
        new = {key: kind for key, kind in keys.items() if self._kinds.get(key) is not kind}
        names: dict[str, str] = {}
        for key, kind in new.items():
            if key in self._kinds:
                raise ValueError(f"{key!r} is recorded as {self._kinds[key].name} and cannot be {kind.name} too")
            for name in output_names(key, kind):
                other = self._names.get(name) or names.get(name)
                if other is not None:
                    raise ValueError(f"{key!r} exports {name!r}, which {other!r} exports already")
                names[name] = key
        self._kinds.update(new)
        self._names.update(names)

    def _forget(self, key: str) -> None:
        for name in output_names(key, self._kinds.pop(key)):
            del self._names[name]
        self._scalars.pop(key, None)
        for block in self._blocks.values():
            block.forget(key)


class _Block:
    """One float64 tensor that holds a row per key; it doubles when full and reuses the rows of forgotten keys."""

    def __init__(self, device: torch.device) -> None:
        self.rows = empty_rows(_FIRST_ROWS, device)
        self.places: dict[str, int] = {}
        self._free = list(reversed(range(_FIRST_ROWS)))

    def add(self, key: str, row: Tensor) -> None:
        place = self.places.get(key)
        if place is not None:
            merge_rows_(self.rows[place], row)
            return
        if not self._free:
            size = len(self.rows)
            self.rows = torch.cat((self.rows, empty_rows(size, self.rows.device)))
            self._free = list(reversed(range(size, 2 * size)))
        place = self.places[key] = self._free.pop()
        self.rows[place] = row

    def records(self, keys: list[str], kinds: Mapping[str, ReduceType]) -> Records:
        present: tuple[Key, ...] = tuple((key, kinds[key]) for key in keys if key in self.places)
        places = [self.places[key] for key, _ in present]
        if places == list(range(len(places))):
            return Records(present, self.rows[: len(places)].clone())
        return Records(present, self.rows[torch.tensor(places, device=self.rows.device, dtype=torch.long)])

    def forget(self, key: str) -> None:
        place = self.places.pop(key, None)
        if place is not None:
            self._free.append(place)


def _as_rows(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64) if rows else empty_rows(0)


def _scalar_row(key: str, value: Tensor) -> Tensor:
    """The summary of a one-element tensor, still on its device."""
    if value.numel() != 1 or value.is_complex():
        raise ValueError(f"scalar {key!r} must be one real number, got a tensor of shape {list(value.shape)}")
    number = value.detach().reshape(())
    number = (number.cpu() if number.device.type == "mps" else number).double()
    one, infinity = torch.ones_like(number), torch.full_like(number, math.inf)
    return torch.stack((number, one, infinity, -infinity))
