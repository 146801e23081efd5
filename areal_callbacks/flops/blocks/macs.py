"""Multiply-adds of one block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Macs:
    """Multiply-adds of one block's forward pass; blocks add up with ``+``, equal ones with ``n *``.

    Attributes:
        per_token: multiply-adds for each token.
        per_pair: multiply-adds for each (query, key) pair that attention visits.
        unweighted: the part of ``per_token`` that multiplies no weights: the recurrence of linear attention, say.
        unused: weights that exist beside those that a token is multiplied with: the experts that it did not select.
            Negative where a block uses the weights of another one again.
    """

    per_token: int = 0
    per_pair: int = 0
    unweighted: int = 0
    unused: int = 0

    def __add__(self, other: Macs) -> Macs:
        return Macs(
            self.per_token + other.per_token,
            self.per_pair + other.per_pair,
            self.unweighted + other.unweighted,
            self.unused + other.unused,
        )

    def __rmul__(self, number: int) -> Macs:
        return Macs(*(number * value for value in (self.per_token, self.per_pair, self.unweighted, self.unused)))

    @property
    def active_weights(self) -> int:
        """Weights that a token is multiplied with."""
        return self.per_token - self.unweighted

    @property
    def weights(self) -> int:
        """All weights of the block's matrices."""
        return self.active_weights + self.unused


def unweighted(macs: int) -> Macs:
    """Multiply-adds per token without weights."""
    return Macs(macs, unweighted=macs)
