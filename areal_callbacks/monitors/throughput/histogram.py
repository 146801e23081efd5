"""How many sequences of each length were seen: exact, of constant size, without a host sync."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from areal_callbacks.monitors.throughput.lengths import Lengths, Rows, count_marks

_BATCHES = 32
_MOST_MARKS = 1 << 20
"""Elements of masks that wait."""


class LengthHistogram:
    """A (length → count) histogram on the device of the first lengths; it grows with the longest width seen.

    A few batches wait and are counted together: for small steps the number of operations is what costs.

    Attributes:
        is_empty: nothing was counted since :meth:`take`.
    """

    _counts: Tensor | None
    _waiting: list[Tensor]
    _masks: list[Tensor]
    _host: Counter[int]
    _unbounded: list[Tensor]

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._counts, self._bound = None, 0
        self._waiting, self._host, self._unbounded = [], Counter(), []
        self._masks, self._marks = [], 0
        self.is_empty = True

    def add(self, lengths: Lengths) -> None:
        """Count the lengths of one batch, a tensor that is not changed afterwards."""
        self.is_empty = False
        self._waiting.append(lengths.values)
        self._bound = max(self._bound, lengths.bound)
        if len(self._waiting) >= _BATCHES:
            self._fold()

    def add_rows(self, rows: Rows) -> None:
        """Count rows of one batch."""
        self.is_empty = False
        if rows.mask is None:
            self._host[rows.width] += rows.number
        else:
            self._add_mask(rows.mask)

    def _add_mask(self, mask: Tensor) -> None:
        """Some wait for each other, as copies."""
        self._masks.append(mask.clone())
        self._marks += mask.numel()
        if len(self._masks) >= _BATCHES or self._marks > _MOST_MARKS:
            self._count_masks()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _count_masks(self) -> None:
        masks, self._masks, self._marks = self._masks, [], 0
        alike: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}
        for mask in masks:
            alike.setdefault((mask.shape[1], mask.dtype, mask.device), []).append(mask)
        for (width, *_), group in alike.items():
            self.add(Lengths(count_marks(torch.cat(group)), width))

    @torch.inference_mode(False)
    @torch.no_grad()
    def _fold(self) -> None:
        device = self._waiting[0].device if self._counts is None else self._counts.device
        waiting, self._waiting = self._waiting, []  # one that raises does not raise for ever
        values = torch.cat([v.to(device, torch.int64, non_blocking=True) for v in waiting])
        if self._counts is None:
            self._counts = torch.zeros(self._bound + 1, dtype=torch.int64, device=device)
        if len(self._counts) <= self._bound:
            self._counts = torch.nn.functional.pad(self._counts, (0, self._bound + 1 - len(self._counts)))
        self._counts.scatter_add_(0, values, torch.ones_like(values))

    def add_host(self, lengths: Iterable[int]) -> None:
        """Count lengths that the host knows.

        Raises:
            ValueError: a length is negative.
            TypeError: a length is no integer.
        """
        values = [operator.index(length) for length in lengths]
        if min(values, default=0) < 0:
            raise ValueError(f"sequence lengths must not be negative, got {values}")
        self.add_counts(Counter(values))

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Count lengths that the host has counted: length → sequences."""
        self.is_empty = False
        self._host.update(counts)

    def add_unbounded(self, lengths: Tensor) -> None:
        """Count an integer tensor whose largest value the host does not know; it is kept until :meth:`take`.

        Raises:
            TypeError: the tensor holds no integers.
        """
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise TypeError(f"sequence lengths must be integers, got a tensor of {lengths.dtype}")
        if lengths.device.type == "cpu":
            self.add_host(lengths.reshape(-1).tolist())
        else:
            self.is_empty = False
            self._unbounded.append(lengths.detach().reshape(-1).clone())

    def take(self) -> dict[int, int]:
        """{length: sequences} without zero lengths, and start over, also if that raises; copies from the device."""
        try:
            return self._take()
        except BaseException:
            self._forget()
            raise

    def _take(self) -> dict[int, int]:
        if self._masks:
            self._count_masks()
        self.is_empty = True
        for lengths in self._unbounded:
            self._host.update(lengths.tolist())
        self._unbounded.clear()
        taken, self._host = self._host, Counter()
        if self._waiting:
            self._fold()
        if self._counts is not None:
            counts = self._counts.to("cpu", copy=True)
            self._counts.zero_()
            present = counts.nonzero().flatten()
            taken.update(dict(zip(present.tolist(), counts[present].tolist())))
        del taken[0]
        return dict(taken)
