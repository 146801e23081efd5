"""Running summaries of one tracker: numbers in Python, tensors in one growing block per device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.core.numbers import as_number, read_local_scalar
from areal_callbacks.core.records import Key, Records, output_names, pool
from areal_callbacks.core.summary import EMPTY, empty_rows, merge_rows_, summarise_number
from areal_callbacks.core.types import ReduceType
from areal_callbacks.safety.reporting import report_once

_FIRST_ROWS = 2


class Accumulator:
    """Holds one summary per key, whatever the number of values. Not thread-safe: its tracker holds the lock."""

    def __init__(self) -> None:
        self._kinds: dict[str, ReduceType] = {}
        self._names: dict[str, str] = {}
        self._scalars: dict[str, list[float]] = {}
        self._blocks: dict[torch.device, _Block] = {}

    def add_scalars(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Fold one number into each scalar ``prefix + name``; all or, if one of them is refused, none."""
        found = {
            prefix + name: value if value.__class__ is float else _number(name, value) for name, value in values.items()
        }
        numbers = {key: value for key, value in found.items() if value is not None}
        new = [key for key in numbers if key not in self._scalars]
        if new:
            self._claim(dict.fromkeys(new, ReduceType.SCALAR))
            self._scalars.update({key: list(EMPTY) for key in new})
        for key, value in numbers.items():
            if isinstance(value, float):
                summary = self._scalars[key]
                summary[0] += value
                summary[1] += 1.0
            else:
                self._block(value.device).add(key, value)

    def add_rows(self, reduce_type: ReduceType, rows: Mapping[str, Tensor]) -> None:
        """Fold ready summaries ``[4]`` into their keys; all or, on a conflict of kinds, none."""
        self._claim(dict.fromkeys(rows, reduce_type))
        for key, row in rows.items():
            self._block(row.device).add(key, row)

    def take(self, key: str | None, reset: bool) -> Records:
        """Everything recorded, or only ``key``, and forget it if ``reset``."""
        records = pool(
            [self._scalar_records(key), *(block.records(key, self._kinds) for block in self._blocks.values())]
        )
        if reset and key is None:
            self._kinds, self._names, self._scalars, self._blocks = {}, {}, {}, {}
        elif reset and key in self._kinds:
            self._forget(key)
        return records

    def _scalar_records(self, key: str | None) -> Records:
        keys = [name for name in self._scalars if key in (None, name)]
        if not keys:
            return Records()
        rows = torch.tensor([self._scalars[name] for name in keys], dtype=torch.float64, device="cpu")
        return Records(tuple((name, ReduceType.SCALAR) for name in keys), rows)

    def _block(self, device: torch.device) -> _Block:
        block = self._blocks.get(device)
        if block is None:
            block = self._blocks[device] = _Block(device)
        return block

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
        self._rows = _outlasting(empty_rows(_FIRST_ROWS, device))
        self._places: dict[str, int] = {}
        self._free = list(reversed(range(_FIRST_ROWS)))

    def add(self, key: str, row: Tensor) -> None:
        place = self._places.get(key)
        if place is not None:
            merge_rows_(self._rows[place], row)
            return
        if not self._free:
            size = len(self._rows)
            self._rows = _outlasting(torch.cat((self._rows, empty_rows(size, self._rows.device))))
            self._free = list(reversed(range(size, 2 * size)))
        place = self._places[key] = self._free.pop()
        self._rows[place] = row

    def records(self, key: str | None, kinds: Mapping[str, ReduceType]) -> Records:
        places = self._places if key is None else {key: self._places[key]} if key in self._places else {}
        keys: tuple[Key, ...] = tuple(zip(places, map(kinds.__getitem__, places)))
        rows = list(places.values())
        if rows == list(range(len(rows))):
            return Records(keys, self._rows[: len(rows)].clone())
        return Records(keys, self._rows[torch.tensor(rows, device=self._rows.device, dtype=torch.long)])

    def forget(self, key: str) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._free.append(place)


def _outlasting(rows: Tensor) -> Tensor:
    """A tensor that can still be written after ``inference_mode``, in which evaluation may make the first record."""
    with torch.inference_mode(False):
        return rows.clone() if rows.is_inference() else rows


def _number(name: str, value: Any) -> float | Tensor | None:
    """A number as a float, a one-element tensor as the summary of it; ValueError for anything else.

    None, with one message, for a tensor whose value is not on this rank: raising there would end a training loop that
    records the gradient norm of sharded parameters.
    """
    if not isinstance(value, Tensor):
        number = as_number(value)
        if number is None:
            raise ValueError(f"scalar {name!r} must be a real number, got {value!r} ({type(value).__name__})")
        return float(number)
    if value.numel() != 1 or value.is_complex():
        raise ValueError(f"scalar {name!r} must be one real number, got a tensor of shape {list(value.shape)}")
    scalar = read_local_scalar(value)
    if scalar is None:
        report_once(
            f"scalar:{name}",
            f"scalar {name!r} is left out: it is a meta or fake tensor, or a DTensor of which every rank holds a part"
            " (record its full_tensor())",
        )
        return None
    return summarise_number(scalar.cpu() if scalar.device.type == "mps" else scalar)
