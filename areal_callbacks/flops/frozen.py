"""Training FLOPs of a model of which a part is frozen.

A product with weights costs three passes: forward, the gradient of its input, the gradient of its weights. Frozen
weights have no gradient (two thirds remain), and where nothing before them in the model is trained, the gradient of
their input is not needed either (one third remains). Products without weights (scores, weighted values, recurrences)
have two inputs, whose gradients go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import FLOPS_PER_MAC, Block, TrainingFlops, add_up


def skip_weight_gradients(
    blocks: Sequence[Block],
    head: Macs,
    *,
    trained: Sequence[Fraction | float | bool],
    trained_head: bool,
    input_gradients: bool = False,
) -> TrainingFlops:
    """The estimate with ``flops: {frozen: skip_weight_gradient}``.

    A block passes gradients from the first one on that is trained at all. Within that one the gradients of all inputs
    are counted, which its first products need only if the norm before them is trained, as in full fine-tuning.

    Args:
        blocks: the model in the order of its forward pass, such as ``Stack.blocks`` gives it. LoRA adapters are blocks
            of their own beside the frozen one that they adapt.
        head: what follows them at every position.
        trained: for each block, the share of its active weights that is trained, from 0 to 1.
        trained_head: whether the head is.
        input_gradients: whether the inputs of the first block need gradients: trained embeddings, or
            ``enable_input_require_grads``.

    Raises:
        ValueError: not one share for each block, or one outside 0 … 1.
    """
    shares = [Fraction(share) for share in trained]
    if len(shares) != len(blocks):
        raise ValueError(f"trained has {len(shares)} entries for {len(blocks)} blocks")
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(f"a share of trained weights is from 0 to 1, not {share}")
    passing = list(accumulate((share > 0 for share in shares), lambda a, b: a or b, initial=input_gradients))
    scaled = [
        Block(_passes(block.macs, share, passes), mask=block.pattern, skips=block.skips)
        for block, share, passes in zip(blocks, shares, passing[1:], strict=True)
    ]
    return add_up(scaled, _passes(head, Fraction(trained_head), passing[-1]), FLOPS_PER_MAC)


def _passes(macs: Macs, share: Fraction, passes: bool) -> Macs:
    """Multiply-adds of all passes that a block needs."""
    weighted = macs.active_weights * (1 + passes) + round(macs.active_weights * share)
    without_weights = 3 if passes else 1
    return Macs(weighted + without_weights * macs.unweighted, without_weights * macs.per_pair)
