"""The work of a model block by block, for tables: what `areal-callbacks flops` and `inspect` show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.encoder_decoder import EncoderDecoder
from areal_callbacks.flops.estimator import TRAINING_FLOPS_PER_MAC, Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.registry import find_architecture
from areal_callbacks.flops.sampled import Sampled
from areal_callbacks.flops.two_towers import TwoTowers


@dataclass(frozen=True)
class BlockWork:
    """All blocks of one name, for one sequence.

    Attributes:
        name: "attention", "mlp", "experts", "linear_attention", "indexer", "head", …; of an encoder–decoder with
            "encoder ", "decoder " or "cross " before it.
        blocks: how many there are.
        flops: training FLOPs.
        pair_flops: the part of them that grows with the (query, key) pairs.
        active_weights: weights that a token is multiplied with.
        weights: all weights of their matrices.
    """

    name: str
    blocks: int
    flops: int
    pair_flops: int
    active_weights: int
    weights: int

    def __add__(self, other: BlockWork) -> BlockWork:
        return BlockWork(
            self.name,
            self.blocks + other.blocks,
            self.flops + other.flops,
            self.pair_flops + other.pair_flops,
            self.active_weights + other.active_weights,
            self.weights + other.weights,
        )


@dataclass(frozen=True)
class ModelWork:
    """The work of training on one sequence.

    Attributes:
        model_type: under which the architecture was found.
        tokens: length of the sequence; of an encoder–decoder, of both together.
        rows: one for each name of a block, in the order of the model.
    """

    model_type: str
    tokens: int
    rows: tuple[BlockWork, ...]

    @property
    def flops(self) -> int:
        """Training FLOPs; equal to the estimator's."""
        return sum(row.flops for row in self.rows)

    @property
    def attention_share(self) -> float:
        """The part of the FLOPs that grows with the pairs, from 0 to 1."""
        return sum(row.pair_flops for row in self.rows) / self.flops if self.flops else 0.0

    @property
    def active_parameters(self) -> int:
        """Weights of matrices that a token is multiplied with, without embedding lookups, norms and biases.

        Weights that several layers share count each time; of an encoder–decoder, those of both sides.
        """
        return sum(row.active_weights for row in self.rows)

    @property
    def parameters(self) -> int:
        """Weights of all matrices; without embedding lookups, norms and biases."""
        return sum(row.weights for row in self.rows)

    @property
    def ratio_to_6nd(self) -> float:
        """FLOPs over 6 · active parameters · tokens."""
        return self.flops / (6 * self.active_parameters * self.tokens) if self.tokens else 0.0


def model_work(
    config: Any, length: int, target_length: int | None = None, *, model_class: str = ""
) -> ModelWork | None:
    """The work of one sequence by blocks, None for a type without a built-in formula.

    Args:
        config: as for :func:`~areal_callbacks.flops.registry.get_flops_estimator`.
        length: tokens of the sequence; of an encoder–decoder, of the source.
        target_length: tokens of the target; by default as many as the source has.
        model_class: as there.
    """
    found = find_architecture(config)
    if found is None:
        return None
    model_type, architecture, part = found
    if isinstance(architecture, Stack):
        rows = _stack_work(architecture, part, model_type, length, model_class)
        return ModelWork(model_type, length, _pool(rows))
    if isinstance(architecture, Sampled):
        rows = _sampled_work(architecture, part, model_type, length, model_class)
        return ModelWork(model_type, length, _pool(rows))
    target = length if target_length is None else target_length
    if isinstance(architecture, TwoTowers):
        rows = _towers_work(architecture, part, model_type, length, target)
    else:
        rows = _pair_work(architecture, part, model_type, length, target)
    return ModelWork(model_type, length + target, _pool(rows))


def _pool(rows: Iterable[BlockWork]) -> tuple[BlockWork, ...]:
    pooled: dict[str, BlockWork] = {}
    for row in rows:
        pooled[row.name] = pooled[row.name] + row if row.name in pooled else row
    return tuple(pooled.values())


def _stack_work(stack: Stack, config: Any, model_type: str, length: int, model_class: str) -> Iterator[BlockWork]:
    fields = Fields(config, model_type, stack.names)
    heads = stack.heads(fields, model_class)
    yield from _blocks_work([*stack.blocks(fields), Block(heads.per_token, name="head")], length)
    yield from _once_work((heads.once or Macs()) + stack.once_of(fields), length)


def _blocks_work(blocks: Iterable[Block], length: int, side: str = "") -> Iterator[BlockWork]:
    return (block_work(block, length, side) for block in blocks)


def _once_work(macs: Macs, length: int, side: str = "") -> Iterator[BlockWork]:
    """What a sequence needs whatever its length, unless that is zero."""
    if macs.per_token:
        flops = TRAINING_FLOPS_PER_MAC * macs.per_token if length else 0
        yield BlockWork(f"{side}pooled", 1, flops, 0, macs.active_weights, macs.weights)


def block_work(block: Block, length: int, side: str = "") -> BlockWork:
    """The work of one block for a sequence of ``length`` tokens."""
    pairs = TRAINING_FLOPS_PER_MAC * block.macs.per_pair * block.pattern.pairs(length)
    linear = TRAINING_FLOPS_PER_MAC * block.macs.per_token * (length - block.skips if length else 0)
    macs = block.macs
    return BlockWork(f"{side}{block.name}", 1, linear + pairs, pairs, macs.active_weights, macs.weights)


def _sampled_work(model: Sampled, config: Any, model_type: str, samples: int, model_class: str) -> Iterator[BlockWork]:
    for convolution in model.convolutions(Fields(config, model_type)):
        samples, macs = convolution.outputs(samples), convolution.macs
        yield BlockWork("convolutions", 1, TRAINING_FLOPS_PER_MAC * macs * samples, 0, macs, macs)
    yield from _stack_work(model.stack, config, model_type, samples, model_class)


def _towers_work(model: TwoTowers, config: Any, model_type: str, image: int, text: int) -> Iterator[BlockWork]:
    sides = zip(model.towers(config, model_type), (image, text), ("image ", "text "), strict=True)
    for (stack, fields, once), length, side in sides:
        yield from _blocks_work(stack.blocks(fields), length, side)
        yield from _once_work(once, length, side)


def _pair_work(model: EncoderDecoder, config: Any, model_type: str, source: int, target: int) -> Iterator[BlockWork]:
    encoder, fields = (Fields(config, model_type, stack.names) for stack in (model.encoder, model.decoder))
    yield from _blocks_work(model.encoder.blocks(encoder), source, "encoder ")
    head = Block(model.decoder.head(fields), name="head")
    yield from _blocks_work([*model.decoder.blocks(fields), head], target, "decoder ")
    layers, cross = model.cross_attention(fields)
    pairs = TRAINING_FLOPS_PER_MAC * layers * cross.per_pair * source * target
    linear = TRAINING_FLOPS_PER_MAC * layers * cross.per_token * (target + (source if target else 0))
    weights = layers * 2 * Macs(cross.per_token).weights
    yield BlockWork("cross attention", layers, linear + pairs, pairs, weights, weights)
