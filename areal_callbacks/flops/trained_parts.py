"""Which weights of a model are trained, block by block, for the estimate that skips the gradients of frozen ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import TRAINING_FLOPS_PER_MAC, Block, TrainingFlops
from areal_callbacks.flops.fallback import Matrix, find_matrices
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.frozen import skip_weight_gradients
from areal_callbacks.flops.heads import heads_of
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.registry import find_architecture

if TYPE_CHECKING:
    from torch import nn

_FEED_FORWARD = re.compile(
    r"(^|\.)(mlp|ffn|feed_forward|\w*moe|experts?|shared_experts?|router|fc1|fc2|w1|w2|w3)\.|^(intermediate|output)\."
)
_ADAPTER = re.compile(r"\.lora_[A-Za-z_]+\.")
_HEADS = re.compile(r"\b(classifier|score|qa_outputs|summary)\b")
"""Names of transformers for heads that are no language model's."""
_COPIED = ".original_module."
"""PEFT keeps the weights that ``modules_to_save`` replaces."""


class _Shared(NamedTuple):
    """A block and the share of its active weights that is trained."""

    block: Block
    trained: Fraction


def skip_frozen(model: nn.Module, config: Any, full: TrainingFlops, *, model_class: str = "") -> TrainingFlops | None:
    """The estimate of a model as it is frozen now; None where its layers cannot be told apart.

    Adapters of PEFT that are trained (LoRA) are counted with their own weights. Within a layer attention and
    feed-forward blocks have shares of their own, by the names of their parameters.

    Args:
        model: the module that trains, in any wrapper that leaves its parameters as they are.
        config: the configuration of a type with a built-in formula.
        full: the estimate without frozen weights.
        model_class: as for :func:`~areal_callbacks.flops.registry.get_flops_estimator`.
    """
    found = find_architecture(config)
    if found is None:
        return None
    model_type, stack, part = found
    if not isinstance(stack, Stack):
        return None
    fields = Fields(part, model_type, stack.names)
    by_layer = stack.blocks_by_layer(fields)
    layers = _find_layers(model, len(by_layer))
    if layers is None:
        return None
    outside = _find_outside(model, layers, part)
    shared: list[_Shared] = []
    for blocks, layer in zip(by_layer, layers, strict=True):
        shared += _share_layer(blocks, find_matrices(layer, part))
    rest = stack.blocks(fields)[sum(map(len, by_layer)) :]
    shared += [_Shared(block, _trained(outside.others)) for block in rest]
    shared += _share_adapters(outside.head)
    head = heads_of(model_class, stack.head, fields, pooled=stack.bidirectional).per_token
    estimate = skip_weight_gradients(
        [one.block for one in shared],
        head,
        trained=[one.trained for one in shared],
        trained_head=_trained(_without_adapters(outside.head)) > 0,
        input_gradients=_needs_input_gradients(model) or any(matrix.is_trained for matrix in outside.inputs),
    )
    skipped = sum(one.block.macs.per_token * one.block.skips for one in shared)
    return replace(estimate, once=estimate.once + full.once + TRAINING_FLOPS_PER_MAC * skipped)


class _Outside(NamedTuple):
    """Matrices outside of the layers: the head's, those whose gradients reach the layers, those of further blocks."""

    head: Sequence[Matrix]
    inputs: Sequence[Matrix]
    others: Sequence[Matrix]


def _find_layers(model: nn.Module, number: int) -> nn.ModuleList | None:
    """The list of that length with the most weights."""
    from torch import nn

    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == number]
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)


def _find_outside(model: nn.Module, layers: nn.ModuleList, config: Any) -> _Outside:
    head = _find_head(model)
    inside, of_head = _ids(layers), set() if head is None else _ids(head)
    matrices = [m for m in find_matrices(model, config, embeddings=True) if m.key not in inside]
    named = {m.key for m in matrices if _HEADS.search(m.name)}
    of_head = of_head or named or {m.key for m in matrices if not m.is_embedding}
    others = [m for m in matrices if m.key not in of_head and not m.is_embedding]
    inputs = [m for m in matrices if m.key not in of_head or m.is_embedding]
    return _Outside([m for m in matrices if m.key in of_head], inputs, others)


def _ids(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def _find_head(model: nn.Module) -> nn.Module | None:
    holder = next((m for m in model.modules() if hasattr(type(m), "get_output_embeddings")), None)
    return None if holder is None else cast("Any", holder).get_output_embeddings()  # None where there is no such head


def _needs_input_gradients(model: nn.Module) -> bool:
    """``enable_input_require_grads`` of transformers was called, as PEFT does for gradient checkpointing."""
    names = ("_require_grads_hook", "_require_grads_hooks")
    return any(vars(module).get(name) for module in model.modules() for name in names)


def _share_layer(blocks: Iterable[Block], matrices: Sequence[Matrix]) -> list[_Shared]:
    own = _without_adapters(matrices)
    sides = {True: [m for m in own if _FEED_FORWARD.search(m.name)], False: []}
    sides[False] = [m for m in own if not _FEED_FORWARD.search(m.name)]
    shared = [_Shared(block, _trained(sides[_is_feed_forward(block)] or own)) for block in blocks]
    return [*_share_adapters(matrices), *shared]


def _is_feed_forward(block: Block) -> bool:
    return block.name in ("mlp", "experts")


def _without_adapters(matrices: Iterable[Matrix]) -> list[Matrix]:
    return [m for m in matrices if not _ADAPTER.search(m.name) and _COPIED not in m.name]


def _share_adapters(matrices: Iterable[Matrix]) -> list[_Shared]:
    """One trained block for all adapters, before what they adapt, whose gradients they need."""
    weights = sum(m.active for m in matrices if m.is_trained and _ADAPTER.search(m.name))
    return [_Shared(Block(Macs(weights), name="adapters"), Fraction(1))] if weights else []


def _trained(matrices: Sequence[Matrix]) -> Fraction:
    every = sum(m.active for m in matrices)
    return Fraction(sum(m.active for m in matrices if m.is_trained), every) if every else Fraction(0)
