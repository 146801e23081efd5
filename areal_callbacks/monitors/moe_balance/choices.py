"""The choices of all routers of a forward, counted together with those of other forwards.

Between the operations of a model each operation of ours costs several times what it costs in a loop, and on an
accelerator each is a kernel. So a router's hook keeps a reference to the indices that it chose. On the CPU these wait
for those of some further forwards. On an accelerator, where they may lie in memory that the next replay of a graph uses
again, the end of the outermost forward copies those of consecutive routers in one operation, and the copies wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from areal_callbacks.monitors.moe_balance.counting import counting_ones
from areal_callbacks.safety.door import attempt

MOST_HELD = 1 << 22
"""Indices that are held, 32 MiB of int64: checkpointing would free them earlier."""

MOST_ON_CPU = 4096
"""Indices of one choice up to which operations cost more on the CPU than the memory that they read."""


class Row:
    """The row of one router in a block.

    Args:
        block: with all routers that have as many experts.
        fail: leaves the router out.

    Attributes:
        number: of the row.
        dtype: of its indices, which nothing changes before the forward ends; None until that is known.
        is_unsteady: something changes them.
        is_brief: they may change after the forward, or hold memory that is larger than they are.
        first: the first indices, until there are others.
    """

    __slots__ = ("block", "dtype", "fail", "first", "is_brief", "is_unsteady", "number")

    def __init__(self, block: Block, fail: Callable[[Exception], None]) -> None:
        self.block, self.fail = block, fail
        self.number = block.add()
        self.dtype: torch.dtype | None = None
        self.is_unsteady, self.is_brief = False, True
        self.first: Tensor | None = None


class Block:
    """The counts of routers with equally many experts, on every device where they run.

    Args:
        experts: of each.
    """

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self._rows = 0
        self._cells: dict[torch.device, Tensor] = {}

    def add(self) -> int:
        """The number of a new row."""
        self._rows += 1
        return self._rows - 1

    def on(self, device: torch.device) -> Tensor:
        """int64 ``[rows, experts + 2]``: cells as a :class:`Counter` has them."""
        cells = self._cells.get(device)
        if cells is None or len(cells) < self._rows:
            with torch.inference_mode(False):
                grown = torch.zeros(self._rows, self.experts + 2, dtype=torch.int64, device=device)
            if cells is not None:
                grown[: len(cells)] = cells
            cells = self._cells[device] = grown
        return cells

    @property
    def size(self) -> int:
        """Cells on each device."""
        return self._rows * (self.experts + 2)

    @property
    def cells(self) -> list[Tensor]:
        """The tensors of all devices, flat."""
        return [self.on(device).view(-1) for device in self._cells]

    def split(self, cells: Tensor) -> Tensor:
        """Flat cells as ``[rows, experts + 2]``."""
        return cells.view(self._rows, -1)


_MOST_FORWARDS = 32
_UNCOUNTED = "routed assignments could not be counted"

_Kept: TypeAlias = tuple[Row, Tensor, int]
"""Where a choice belongs, integers of any shape, and the version of these when they were put out."""


class _Watched(NamedTuple):
    """The first choice of a router.

    Attributes:
        row: where it belongs.
        ids: integers of any shape.
        version: of these, when they were put out.
        stream: on which that was; None on the CPU.
    """

    row: Row
    ids: Tensor
    version: int
    stream: torch.Stream | None


class _Group(NamedTuple):
    """The choices of consecutive routers in one forward, copied together.

    Attributes:
        row: of the first router.
        ids: ``[routers, choices]``, any integers.
    """

    row: Row
    ids: Tensor


class Choices:
    """Holds what routers chose until some forwards have ended, and is counted.

    What is put out may be changed in place before, or lie in memory that is used again. So the first choice of each
    router is counted at once, and watched until the forward ends and, on the CPU, the next choice is made: only if it
    has not changed by then later ones wait. One that changes all the same costs its router.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Hold nothing any more."""
        self._kept: list[_Kept] = []
        self._watched: list[_Watched] = []
        self._groups: list[_Group] = []
        self._kept_size = self._group_size = self._forwards = 0
        self._is_brief = False

    def keep(self, row: Row, chosen: Tensor) -> bool:
        """Keep what a router has just put out, if that is indices that can wait; False if it is to be counted now."""
        if chosen.dtype is not row.dtype and not self._is_steady(row, chosen):
            return False
        size = chosen.numel()
        if size > MOST_ON_CPU and chosen.is_cpu:
            return False
        try:
            self._kept.append((row, chosen, chosen._version))
        except RuntimeError:  # a tensor of inference mode has none
            return False
        if row.is_brief:
            self._is_brief = True
        self._kept_size += size
        if self._kept_size > MOST_HELD:
            self._copy_kept()
        return True

    def _is_steady(self, row: Row, chosen: Tensor) -> bool:
        """By what the router chose before; if that is not known, this choice will tell."""
        first, row.first = row.first, None
        if first is None or first.dtype is not chosen.dtype:
            self._watch(row, chosen)
            return False
        row.is_unsteady = first.data_ptr() == chosen.data_ptr() != 0
        row.dtype = None if row.is_unsteady else first.dtype
        return not row.is_unsteady

    def _watch(self, row: Row, chosen: Tensor) -> None:
        dtype = chosen.dtype
        if row.is_unsteady or dtype == torch.bool or dtype.is_floating_point or chosen.is_inference():
            return
        if sum(each.ids.numel() for each in self._watched) < MOST_HELD:
            self._watched.append(_Watched(row, chosen, chosen._version, _stream(chosen)))

    def end_forward(self) -> None:
        """A forward has ended, however it ended: what routers have put out may change from here on, unless it waits."""
        if self._watched:
            attempt("moe_balance:watch", "routers are counted one by one, which is slower", self._settle)
        if self._kept:
            self._forwards += 1
            if self._is_brief or self._forwards >= _MOST_FORWARDS:
                self._copy_kept()

    def count(self) -> None:
        """Count everything that was kept."""
        self.end_forward()
        if self._kept:
            self._copy_kept()
        groups, self._groups, self._group_size = self._groups, [], 0
        attempt("moe_balance:count", _UNCOUNTED, _count, groups)

    def _settle(self) -> None:
        watched, self._watched = self._watched, []
        places = [ids.data_ptr() for ids in (*(each.ids for each in watched), *(ids for _, ids, _ in self._kept))]
        for row, ids, version, stream in watched:
            is_alone = places.count(ids.data_ptr()) == 1 or not ids.numel()
            row.is_unsteady = not is_alone or ids._version != version or _stream(ids) != stream
            row.is_brief = not ids.is_cpu or ids.untyped_storage().nbytes() > 2 * ids.nbytes
            if not row.is_unsteady:
                row.first, row.dtype = (None, ids.dtype) if row.is_brief else (ids, None)

    def _copy_kept(self) -> None:
        kept, size = self._kept, self._kept_size
        self._kept, self._kept_size, self._forwards, self._is_brief = [], 0, 0, False
        self._groups += attempt("moe_balance:count", _UNCOUNTED, _copy, kept) or ()
        self._group_size += size
        is_captured = kept[0][1].is_cuda and torch.cuda.is_current_stream_capturing()
        if is_captured or self._group_size > MOST_HELD or len(self._groups) >= _MOST_FORWARDS:
            self.count()


def _stream(ids: Tensor) -> torch.Stream | None:
    return None if ids.is_cpu else torch.accelerator.current_stream(ids.device)


def _copy(kept: list[_Kept]) -> list[_Group]:
    places: set[int] = set()
    for row, ids, version in kept:
        place = ids.data_ptr()
        if ids._version != version or (place and place in places):
            _leave_out(row)
        places.add(place)
    return [_Group(run[0][0], torch.stack([ids for _, ids, _ in run]).view(len(run), -1)) for run in _runs(kept)]


def _leave_out(row: Row) -> None:
    row.is_unsteady, row.dtype = True, None
    row.fail(ValueError("its indices were changed in place, which in its first forward they were not"))


def _runs(kept: list[_Kept]) -> Iterator[list[_Kept]]:
    """Choices of equal shape whose rows follow each other."""
    start = 0
    for end in range(1, len(kept) + 1):
        if end == len(kept) or not _follows(kept[end - 1], kept[end]):
            yield kept[start:end]
            start = end


def _follows(before: _Kept, here: _Kept) -> bool:
    (row, ids, _), (next_row, next_ids, _) = before, here
    is_next = next_row.number == row.number + 1 and next_row.block is row.block and next_row.dtype is row.dtype
    return is_next and next_ids.shape == ids.shape and next_ids.device == ids.device


def _count(groups: list[_Group]) -> None:
    alike: dict[tuple[Row, int, torch.dtype, torch.device], list[Tensor]] = {}
    for row, ids in groups:
        alike.setdefault((row, len(ids), ids.dtype, ids.device), []).append(ids)
    for (row, *_), parts in alike.items():
        _add(row, parts[0] if len(parts) == 1 else torch.cat(parts, 1))


def _add(row: Row, ids: Tensor) -> None:
    """An index that is no expert falls into a cell beside them: no operation waits for the device or fails on it."""
    ids = ids if ids.dtype == torch.int64 else ids.long()
    places = ids.clamp_(-1, row.block.experts).add_(1)
    cells = row.block.on(ids.device)[row.number : row.number + len(ids)]
    cells.scatter_add_(1, places, counting_ones(ids.device).expand_as(places))
