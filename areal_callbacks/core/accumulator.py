"""Running summaries of one tracker: numbers in Python, tensors in one growing block per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.core.numbers import as_number, read_local
from areal_callbacks.core.records import Key, Records, output_names, pool
from areal_callbacks.core.summary import EMPTY, empty_rows, merge_rows_, summarise_number
from areal_callbacks.core.types import ReduceType
from areal_callbacks.safety.reporting import report_once

_FIRST_ROWS = 2
_NOTHING: dict[str, list[float]] = {}


class Accumulator:
    """Holds one summary per key, whatever the number of values. Not thread-safe: its tracker holds the lock."""

    def __init__(self) -> None:
        self._kinds: dict[str, ReduceType] = {}
        self._names: dict[str, str] = {}
        self._scalars: dict[str, list[float]] = {}
        self._under: dict[str, dict[str, list[float]]] = {}
        self._blocks: dict[torch.device, _Block] = {}

    def add_scalars(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Fold one number into each scalar ``prefix + name``; all or, if one of them is refused, none."""
        known = self._under.get(prefix, _NOTHING)
        for name, value in values.items():
            if value.__class__ is not float or name not in known:
                self._add_any_scalars(prefix, values)
                return
        for name, value in values.items():
            summary = known[name]
            summary[0] += value
            summary[1] += 1.0

    def _add_any_scalars(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Also what is no float yet, and keys that are new."""
        found = {name: value if value.__class__ is float else _number(name, value) for name, value in values.items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        known = self._under.setdefault(prefix, {})
        if not known.keys() >= numbers.keys():
            self._claim({prefix + name: ReduceType.SCALAR for name in numbers})
            for name in numbers:
                known[name] = self._scalars.setdefault(prefix + name, list(EMPTY))
        for name, value in numbers.items():
            if isinstance(value, float):
                known[name][0] += value
                known[name][1] += 1.0
            else:
                self._block(value.device).add([prefix + name], value.unsqueeze(0))

    def add_rows(self, reduce_type: ReduceType, rows: Mapping[str, Tensor]) -> None:
        """Fold ready summaries ``[4]`` into their keys; all or, on a conflict of kinds, none."""
        self._claim(dict.fromkeys(rows, reduce_type))
        by_device: dict[torch.device, list[str]] = {}
        for key, row in rows.items():
            by_device.setdefault(row.device, []).append(key)
        for device, keys in by_device.items():
            self._block(device).add(keys, torch.stack([rows[key] for key in keys]))

    def take(self, key: str | None, reset: bool) -> Records:
        """Everything recorded, or only ``key``, and forget it if ``reset``."""
        records = pool(
            [self._scalar_records(key), *(block.records(key, self._kinds) for block in self._blocks.values())]
        )
        if reset and key is None:
            self._kinds, self._names, self._scalars, self._under, self._blocks = {}, {}, {}, {}, {}
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
        self._under.clear()  # made again from what is left
        for block in self._blocks.values():
            block.forget(key)


class _Block:
    """One float64 tensor that holds a row per key; it doubles when full and reuses the rows of forgotten keys."""

    def __init__(self, device: torch.device) -> None:
        self._rows = _make_writable(empty_rows(_FIRST_ROWS, device))
        self._indices: dict[str, int] = {}
        self._free = list(reversed(range(_FIRST_ROWS)))

    def add(self, keys: Sequence[str], rows: Tensor) -> None:
        """Merge rows ``[len(keys), 4]`` into those of the keys; in three operations where these follow each other, as
        keys do that are always recorded together."""
        indices = [self._index_of(key) for key in keys]
        first = indices[0]
        if indices == list(range(first, first + len(indices))):
            merge_rows_(self._rows[first : first + len(indices)], rows)
        else:
            for index, row in zip(indices, rows):
                merge_rows_(self._rows[index], row)

    def _index_of(self, key: str) -> int:
        """The row of a key; that of a new one is empty."""
        index = self._indices.get(key)
        if index is None:
            if not self._free:
                self._double()
            index = self._indices[key] = self._free.pop()
        return index

    def _double(self) -> None:
        size = len(self._rows)
        self._rows = _make_writable(torch.cat((self._rows, empty_rows(size, self._rows.device))))
        self._free = list(reversed(range(size, 2 * size)))

    def records(self, key: str | None, kinds: Mapping[str, ReduceType]) -> Records:
        indices = self._indices if key is None else {key: self._indices[key]} if key in self._indices else {}
        keys: tuple[Key, ...] = tuple(zip(indices, map(kinds.__getitem__, indices)))
        rows = list(indices.values())
        if rows == list(range(len(rows))):
            return Records(keys, self._rows[: len(rows)].clone())
        return Records(keys, self._rows[torch.tensor(rows, device=self._rows.device, dtype=torch.long)])

    def forget(self, key: str) -> None:
        index = self._indices.pop(key, None)
        if index is not None:
            self._rows[index] = empty_rows(1, self._rows.device)[0]
            self._free.append(index)


def _make_writable(rows: Tensor) -> Tensor:
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
    scalar = read_local(value)
    if scalar is None:
        report_once(
            f"scalar:{name}",
            f"scalar {name!r} is left out: it is a meta or fake tensor, or a DTensor of which every rank holds a part"
            " (record its full_tensor())",
        )
        return None
    return summarise_number(scalar.cpu() if scalar.device.type == "mps" else scalar)
