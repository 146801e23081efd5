"""Which lengths source and target of the pairs had that an encoder-decoder was trained on, without a host sync."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

_BATCHES = 32


class PairCounts:
    """Two integers a pair on the device of the first pairs, until they are taken.

    Attributes:
        is_empty: no pair since :meth:`take`.
    """

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @torch.inference_mode(False)
    @torch.no_grad()
    def add(self, sources: Tensor, targets: Tensor) -> None:
        """The lengths of one batch, integers ``[pairs]`` each."""
        self._waiting.append(torch.stack([sources.int(), targets.int()], 1))
        if len(self._waiting) >= _BATCHES:
            device = self._waiting[0].device
            self._waiting = [torch.cat([pairs.to(device, non_blocking=True) for pairs in self._waiting])]

    def take(self) -> dict[tuple[int, int], int]:
        """{(source, target): pairs} without empty targets, and start over; copies from the device."""
        counts: Counter[tuple[int, int]] = Counter()
        for pairs in self._waiting:
            counts.update((source, target) for source, target in pairs.tolist() if target)
        self._waiting = []
        return dict(counts)
