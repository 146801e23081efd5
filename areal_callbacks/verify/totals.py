"""What a recount has found so far."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

LayerKey = tuple[str, int]
"""Stack (``""`` for the main decoder) and number of a layer."""


@dataclass
class Totals:
    """Sums over the training calls.

    Attributes:
        tokens: ids that were embedded in training calls, without padding.
        positions: the same with padding.
        lengths: ids of every sequence.
        input_frames: audio frames or samples that encoders were given, without padding.
        routed: assignments to every expert, by layer.
        flops: of the operators of training forwards and their backward, without recomputation; 0 unless asked for.
        calls: training calls that embedded ids or were given embeddings.
        digest: of everything that was embedded, in its order: equal on ranks that were given the same.
        unread: what could not be read, and why.
    """

    tokens: int = 0
    positions: int = 0
    lengths: list[int] = field(default_factory=list)
    input_frames: int = 0
    routed: dict[LayerKey, list[int]] = field(default_factory=dict)
    flops: int = 0
    calls: int = 0
    digest: bytes = b""
    unread: list[str] = field(default_factory=list)

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def padding(self) -> int:
        """Embedded ids that are padding."""
        return self.positions - self.tokens

    def add_rows(self, lengths: list[int], positions: int, embedded: bytes) -> None:
        """Add what one training call embedded."""
        self.digest = hashlib.blake2b(self.digest + embedded, digest_size=16).digest()
        self.calls += 1
        self.tokens += sum(lengths)
        self.positions += positions
        self.lengths += lengths

    def add_routed(self, layer: LayerKey, counts: list[int]) -> None:
        """Add the assignments of one training call of a layer."""
        known = self.routed.setdefault(layer, [])
        known[:] = [before + now for before, now in zip_longest(known, counts, fillvalue=0)]

    def note(self, problem: str) -> None:
        """Keep what could not be read, once."""
        if problem not in self.unread:
            self.unread.append(problem)

    def copy(self) -> Totals:
        """As they are now."""
        return copy.deepcopy(self)

    def add(self, other: Totals, *, tokens: bool = True, routes: bool = True) -> None:
        """Add another rank's, or those parts of it that no other rank repeats."""
        if tokens:
            self.tokens += other.tokens
            self.positions += other.positions
            self.lengths += other.lengths
            self.input_frames += other.input_frames
            self.calls += other.calls
        self.flops += other.flops
        for layer, counts in other.routed.items() if routes else ():
            self.add_routed(layer, counts)
        for problem in other.unread:
            self.note(problem)


def sum_over_ranks(ranks: Iterable[tuple[Totals, bool, bool]]) -> Totals:
    """The totals of all ranks, each with whether its tokens and its routed assignments count.

    A rank whose tokens do not count embeds what another one does. Where it embeds something else, as a
    context-parallel rank does with its part of every sequence, the parts add up.
    """
    summed, seen = Totals(), set()
    for totals, tokens, routes in sorted(ranks, key=lambda rank: not rank[1]):
        summed.add(totals, tokens=tokens or totals.digest not in seen, routes=routes)
        seen.add(totals.digest)
    return summed
