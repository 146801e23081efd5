"""A compiled estimate: the training FLOPs of one sequence as a polynomial in its length."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.masks import BIDIRECTIONAL, CAUSAL, Causal, Mask, Sliding

FLOPS_PER_MAC = 2
"""One multiplication and one addition."""

TRAINING_PER_FORWARD = 3
"""The backward pass computes two products (for inputs and for weights) for each one of the forward pass.

Source: scaling laws (arXiv 2001.08361), section 2.1.
"""

TRAINING_FLOPS_PER_MAC = FLOPS_PER_MAC * TRAINING_PER_FORWARD


def check_length(length: Any) -> int:
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


@dataclass(frozen=True, slots=True, repr=False)
class TrainingFlops:
    """Forward and backward FLOPs of one sequence of L tokens: ``a·L + b·L·(L+1) + Σ c·causal_pairs(L, W)``.

    The sequences of a packed batch are estimated one by one and summed: attention does not cross their borders.

    Attributes:
        a: FLOPs per token.
        b: half the FLOPs per (query, key) pair, over the layers that attend to the whole prefix.
        windows: (W, c) for each sliding window W: c FLOPs per pair, over the layers with that window.
        others: (mask, c) for every other pattern of attention: c FLOPs for each pair that the mask has.
        once: FLOPs of a sequence whatever its length, such as the classification head's; less those of positions that
            a block skips.
    """

    a: int
    b: int
    windows: tuple[tuple[int, int], ...] = ()
    others: tuple[tuple[Mask, int], ...] = ()
    once: int = 0
    _polynomial: tuple[int, int] = field(init=False, repr=False, compare=False)
    _beside: tuple[tuple[Mask, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """L² of bidirectional attention is L·(L+1) − L: no mask to be called for each sequence."""
        square = sum(c for mask, c in self.others if mask == BIDIRECTIONAL)
        object.__setattr__(self, "_polynomial", (self.a - square, self.b + square))
        object.__setattr__(self, "_beside", tuple(other for other in self.others if other[0] != BIDIRECTIONAL))

    def __call__(self, length: int) -> int:
        """FLOPs of one sequence of ``length`` tokens; exact. Raises TypeError or ValueError for what is no length."""
        # The exact type is compared because this runs once a sequence and isinstance on an ABC would double its cost.
        if type(length) is not int or length < 0:
            length = check_length(length)
        both = length * (length + 1)
        linear, quadratic = self._polynomial
        total = length * linear + both * quadratic
        # causal_pairs, written out: a call for each window would double the cost.
        for window, per_pair in self.windows:
            total += per_pair * (both // 2 if length <= window else window * (2 * length - window + 1) // 2)
        for mask, per_pair in self._beside:
            total += per_pair * mask.pairs(length)
        return total + self.once if length else 0

    def __repr__(self) -> str:
        shown = (f for f in fields(self) if f.init and (f.name in ("a", "b", "windows") or getattr(self, f.name)))
        return f"TrainingFlops({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the model whose attention, if it has any, follows one pattern: a decoder layer or a part of one.

    Attributes:
        macs: multiply-adds.
        window: keys that a query may see, itself included; None for the whole prefix. Short for ``mask=Sliding(W)``.
        mask: the pattern of attention.
        name: what it is, for tables.
        skips: positions of a sequence that ``per_token`` does not apply to, such as the class token of an embedding of
            patches.
    """

    macs: Macs
    window: int | None = None
    mask: Mask = CAUSAL
    name: str = ""
    skips: int = 0

    @property
    def pattern(self) -> Mask:
        """The mask, with the window if there is one."""
        return self.mask if self.window is None else Sliding(self.window)


def training_flops(blocks: Iterable[Block], head: Macs, *, once: Macs | None = None) -> TrainingFlops:
    """Add up blocks and head, at 2 FLOPs a multiply-add and 3 times the forward pass.

    Args:
        blocks: all of the model, one by one.
        head: applied to every token.
        once: multiply-adds of a sequence whatever its length (in ``per_token``).

    Example:
        >>> from areal_callbacks.flops import blocks
        >>> attention = blocks.grouped_query_attention(
        ...     hidden_size=4, num_attention_heads=2, num_key_value_heads=1, head_dim=2)
        >>> mlp = blocks.feed_forward(hidden_size=4, intermediate_size=8)
        >>> training_flops([Block(attention + mlp)] * 2, blocks.language_model_head(hidden_size=4, vocab_size=10))
        TrainingFlops(a=1968, b=48, windows=())
    """
    return add_up(blocks, head, TRAINING_FLOPS_PER_MAC, once=once)


def add_up(blocks: Iterable[Block], head: Macs, flops_per_mac: int, *, once: Macs | None = None) -> TrainingFlops:
    """As :func:`training_flops`, with the FLOPs that a multiply-add of the blocks stands for."""
    per_token, per_pair, skipped = head.per_token, Counter[Mask](), 0
    for block in blocks:
        per_token += block.macs.per_token
        skipped += block.macs.per_token * block.skips
        if block.macs.per_pair:
            per_pair[block.pattern] += block.macs.per_pair
    prefix = per_pair.pop(CAUSAL, 0)
    flops = {mask: flops_per_mac * macs for mask, macs in per_pair.items()}
    return TrainingFlops(
        flops_per_mac * per_token,
        flops_per_mac // 2 * prefix,
        tuple(sorted((mask.window, c) for mask, c in flops.items() if isinstance(mask, Sliding))),
        tuple((mask, c) for mask, c in flops.items() if not isinstance(mask, Sliding | Causal)),
        flops_per_mac * ((once.per_token if once else 0) - skipped),
    )
