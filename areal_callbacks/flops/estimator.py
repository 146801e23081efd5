"""A compiled estimate: the training FLOPs of one sequence as a polynomial in its length."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from areal_callbacks.flops.blocks import Macs

FLOPS_PER_MAC = 2
"""One multiplication and one addition."""

TRAINING_PER_FORWARD = 3
"""The backward pass computes two products (for inputs and for weights) for each one of the forward pass."""


def checked_length(length: Any) -> int:
    """``length`` as an int.

    Raises:
        TypeError: for anything but an integer; a bool is no length.
        ValueError: for a negative length.
    """
    if isinstance(length, bool) or not isinstance(length, numbers.Integral):
        raise TypeError(f"a sequence length is a nonnegative int, not {length!r} of type {type(length).__name__}")
    if length < 0:
        raise ValueError(f"a sequence length is a nonnegative int, not {length!r}")
    return int(length)


def causal_pairs(length: int, window: int) -> int:
    """Number of (query, key) pairs with ``0 ≤ query − key < window``.

    ``L(L+1)/2`` for a length L within the window W, else ``W(W+1)/2 + (L−W)·W``.
    """
    seen = min(length, window)
    return seen * (seen + 1) // 2 + (length - seen) * window


@dataclass(frozen=True, slots=True)
class TrainingFlops:
    """Forward and backward FLOPs of one causal sequence of L tokens: ``a·L + b·L·(L+1) + Σ c·causal_pairs(L, W)``.

    The sequences of a packed batch are estimated one by one and summed: attention does not cross their borders.

    Attributes:
        a: FLOPs per token.
        b: half the FLOPs per (query, key) pair, over the layers that attend to the whole prefix.
        windows: (W, c) for each sliding window W: c FLOPs per pair, over the layers with that window.
    """

    a: int
    b: int
    windows: tuple[tuple[int, int], ...] = ()

    def __call__(self, length: int) -> int:
        """FLOPs of one sequence of ``length`` tokens; exact. Raises TypeError or ValueError for what is no length."""
        # The exact type is compared because this runs once a sequence and isinstance on an ABC would double its cost.
        if type(length) is not int or length < 0:
            length = checked_length(length)
        total = length * (self.a + self.b * (length + 1))
        for window, per_pair in self.windows:
            total += per_pair * causal_pairs(length, window)
        return total


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer.

    Attributes:
        macs: sum of its blocks.
        window: number of keys that a query may see, itself included; None for the whole prefix.
    """

    macs: Macs
    window: int | None = None


def training_flops(layers: Iterable[Layer], head: Macs) -> TrainingFlops:
    """Add up decoder layers and language-model head, at 2 FLOPs a multiply-add and 3 times the forward pass.

    Example:
        >>> from areal_callbacks.flops import blocks
        >>> attention = blocks.grouped_query_attention(
        ...     hidden_size=4, num_attention_heads=2, num_key_value_heads=1, head_dim=2)
        >>> mlp = blocks.feed_forward(hidden_size=4, intermediate_size=8)
        >>> training_flops([Layer(attention + mlp)] * 2, blocks.language_model_head(hidden_size=4, vocab_size=10))
        TrainingFlops(a=1968, b=48, windows=())
    """
    flops_per_mac = FLOPS_PER_MAC * TRAINING_PER_FORWARD
    per_token, per_pair = head.per_token, Counter[int | None]()
    for layer in layers:
        per_token += layer.macs.per_token
        if layer.macs.per_pair:
            per_pair[layer.window] += layer.macs.per_pair
    prefix = per_pair.pop(None, 0)
    windows = tuple((window, flops_per_mac * macs) for window, macs in per_pair.items() if window is not None)
    return TrainingFlops(flops_per_mac * per_token, flops_per_mac // 2 * prefix, tuple(sorted(windows)))
