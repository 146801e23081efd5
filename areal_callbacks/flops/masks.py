"""How many (query, key) pairs attention visits in a sequence of L tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Mask(Protocol):
    """A pattern of attention."""

    def pairs(self, length: int) -> int:
        """Visited pairs in a sequence of ``length`` tokens."""
        ...


def causal_pairs(length: int, window: int) -> int:
    """Number of (query, key) pairs with ``0 ≤ query − key < window``.

    ``L(L+1)/2`` for a length L within the window W, else ``W(W+1)/2 + (L−W)·W``.
    """
    seen = min(length, window)
    return seen * (seen + 1) // 2 + (length - seen) * window


@dataclass(frozen=True, slots=True)
class Causal:
    """A query sees itself and everything before it: ``L(L+1)/2``."""

    def pairs(self, length: int) -> int:
        """Visited pairs."""
        return length * (length + 1) // 2


@dataclass(frozen=True, slots=True)
class Sliding:
    """A query sees the last ``window`` tokens, itself included; also the number of keys that a sparse query selects."""

    window: int

    def pairs(self, length: int) -> int:
        """Visited pairs."""
        return causal_pairs(length, self.window)


@dataclass(frozen=True, slots=True)
class Chunked:
    """Causal within chunks of ``size`` tokens (Llama 4).

    With r tokens in the last chunk ``(L−r)·(size+1)/2 + r·(r+1)/2``.
    """

    size: int

    def pairs(self, length: int) -> int:
        """Visited pairs."""
        size = self.size
        rest = length % size
        return (length * (size + 1) - rest * (size - rest)) // 2


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """Every token sees every token: L²."""

    def pairs(self, length: int) -> int:
        """Visited pairs."""
        return length * length


@dataclass(frozen=True, slots=True)
class Band:
    """A token sees ``reach`` tokens on each side and itself (ModernBERT's local layers)."""

    reach: int

    def pairs(self, length: int) -> int:
        """Visited pairs: the causal half twice, the diagonal once."""
        return 2 * causal_pairs(length, self.reach + 1) - length


@dataclass(frozen=True, slots=True)
class Relative:
    """Every token meets the relative positions from −reach to reach that occur in the sequence (DeBERTa)."""

    reach: int

    def pairs(self, length: int) -> int:
        """Pairs of a token and a relative position."""
        return 2 * length * min(length, self.reach)


@dataclass(frozen=True, slots=True)
class Compressed:
    """A query sees one key for every ``rate`` tokens that are complete by then, at most ``selected`` of them.

    With t counted from 1 the t-th token sees ``min(t // rate, selected)``.
    """

    rate: int
    selected: int | None = None

    def pairs(self, length: int) -> int:
        """Visited pairs."""
        if self.selected is None or length // self.rate <= self.selected:
            return self._all(length)
        full = (self.selected + 1) * self.rate - 1
        return self._all(full) + (length - full) * self.selected

    def _all(self, length: int) -> int:
        keys, rest = divmod(length, self.rate)
        return self.rate * keys * (keys - 1) // 2 + keys * (rest + 1)


CAUSAL = Causal()
BIDIRECTIONAL = Bidirectional()
