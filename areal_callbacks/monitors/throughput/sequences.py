"""Which sequences were trained on since the last export, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

from torch import Tensor

from areal_callbacks.flops.registry import Estimator, takes_pairs
from areal_callbacks.monitors.throughput.histogram import LengthHistogram
from areal_callbacks.monitors.throughput.lengths import Lengths, Rows
from areal_callbacks.monitors.throughput.pairs import PairCounts
from areal_callbacks.safety.reporting import report_once


class Sequences(NamedTuple):
    """The sequences of an interval.

    Attributes:
        lengths: length → sequences, those of encoders and decoders among them.
        alone: how many of them are no part of a pair.
        pairs: (source, target) → pairs of an encoder-decoder.
    """

    lengths: Mapping[int, int]
    alone: int
    pairs: Mapping[tuple[int, int], int]

    @property
    def tokens(self) -> int:
        return sum(length * count for length, count in self.lengths.items())

    def flops(self, estimator: Estimator) -> float | None:
        """Their training FLOPs; None where the estimator is one of pairs and none of these is in a pair.

        Raises:
            ValueError: the estimator returns no finite number.
        """
        if not takes_pairs(estimator):
            estimates = [count * estimator(length) for length, count in self.lengths.items()]
        elif self.alone and not self.pairs:  # with pairs: an encoder that was called before its decoder
            report_once("flops:pairs", "not every text had a source and a target: FLOPs, which need both, are left out")
            return None
        else:
            estimates = [count * estimator(*pair) for pair, count in self.pairs.items()]
        flops = sum(estimates)
        if not math.isfinite(flops):
            raise ValueError(f"it returned {flops}")
        return flops


class SequenceCounts:
    """Counts sequences by their lengths, without a host sync.

    Attributes:
        unreadable: batches whose lengths could not be told.
        rules: what told the lengths of the others.
    """

    def __init__(self) -> None:
        self.unreadable = 0
        self.rules: set[str] = set()
        self._alone, self._paired = LengthHistogram(), LengthHistogram()
        self._pairs = PairCounts()

    @property
    def is_empty(self) -> bool:
        """Nothing was counted since :meth:`take`."""
        return self._alone.is_empty and self._paired.is_empty

    def add_read(self, lengths: Lengths | Rows | None) -> None:
        """What a call was given; None if that could not be read."""
        if lengths is None:
            self.unreadable += 1
            return
        if isinstance(lengths, Rows):
            self._alone.add_rows(lengths)
            return
        self.rules.add(lengths.rule)
        (self._paired if lengths.is_paired else self._alone).add(lengths)
        if lengths.pairs is not None:
            self._pairs.add(*lengths.pairs)

    def add(self, lengths: Any) -> bool:
        """What a host or a ``token_count_fn`` tells: :class:`Lengths`, integers, or an integer tensor; True."""
        if isinstance(lengths, Lengths):
            self.add_read(lengths._replace(values=lengths.values.detach().reshape(-1).clone()))
        elif isinstance(lengths, Tensor):
            self._alone.add_unbounded(lengths)
        else:
            self._alone.add_host([int(lengths)] if isinstance(lengths, Integral) else lengths)
        return True

    def join(self, other: SequenceCounts) -> None:
        """Take what another has counted; copies from the device."""
        self.rules |= other.rules
        self.unreadable += other.take_unreadable()
        taken = other.take()
        if taken.lengths:
            self._alone.add_counts(taken.lengths)

    def take(self) -> Sequences:
        """What was counted since the last call; copies from the device."""
        alone, paired = self._alone.take(), self._paired.take()
        together = {length: alone.get(length, 0) + paired.get(length, 0) for length in {**alone, **paired}}
        return Sequences(together, sum(alone.values()), self._pairs.take())

    def take_unreadable(self) -> int:
        """Batches since the last call that could not be read."""
        unreadable, self.unreadable = self.unreadable, 0
        return unreadable


NOTHING = Sequences({}, 0, {})
