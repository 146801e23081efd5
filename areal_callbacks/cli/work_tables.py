"""The work of a model as text and as JSON: what ``areal-callbacks flops`` and ``inspect`` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from areal_callbacks.cli.model_configs import read_class
from areal_callbacks.flops import TrainingFlops
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.registry import Estimator
from areal_callbacks.flops.sampled import SampledFlops
from areal_callbacks.flops.work import BlockWork, ModelWork, model_work
from areal_callbacks.safety.text import tell_number

_BLOCKS = ("block", "number", "FLOPs", "per token", "share", "active parameters", "parameters")


def read_works(config: Any, estimate: Estimator, lengths: Sequence[int]) -> list[ModelWork]:
    """The work of one sequence of each length by blocks; nothing for a registered formula, which has no blocks."""
    if not isinstance(estimate, TrainingFlops | EncoderDecoderFlops | SampledFlops):
        return []
    works = (model_work(config, length, model_class=read_class(config)) for length in lengths)
    return [work for work in works if work is not None]


def describe_sequence(estimate: Estimator, length: str) -> str:
    """What the FLOPs of a length are those of."""
    if isinstance(estimate, EncoderDecoderFlops):
        return f"a source and a target sequence of {length} tokens each"
    return f"one sequence of {length} {'samples' if isinstance(estimate, SampledFlops) else 'tokens'}"


def describe_works(works: Sequence[ModelWork]) -> str:
    """Parameters, and a table of blocks for each length."""
    first = works[0]
    parameters = (
        f"{first.parameters:,} parameters in matrices, {first.active_parameters:,} active for a token "
        "(no embedding lookups, norms, biases)"
    )
    return "\n\n".join([parameters, *map(_describe, works)])


def _describe(work: ModelWork) -> str:
    headline = f"{tell_number(work.tokens, 'token')}: {work.flops:,} FLOPs"
    if not work.tokens:
        return headline
    ratios = f"attention share {work.attention_share:.1%}, {work.ratio_to_6nd:.3f} times 6·N·D"
    table = tabulate(
        [_row(row, work) for row in work.rows], _BLOCKS, colalign=("left", *("right",) * 6), disable_numparse=True
    )
    return f"{headline}, {work.flops / work.tokens:,.0f} per token; {ratios}\n{table}"


def _row(row: BlockWork, work: ModelWork) -> tuple[str, ...]:
    numbers = (f"{row.blocks:,}", f"{row.flops:,}", f"{row.flops / work.tokens:,.0f}", f"{row.flops / work.flops:.1%}")
    return row.name, *numbers, f"{row.active_weights:,}", f"{row.weights:,}"


def works_to_dict(works: Sequence[ModelWork]) -> dict[str, Any]:
    """The same for JSON."""
    first = works[0]
    return {
        "model_type": first.model_type,
        "parameters": first.parameters,
        "active_parameters": first.active_parameters,
        "sequences": [_sequence_to_dict(work) for work in works],
    }


def _sequence_to_dict(work: ModelWork) -> dict[str, Any]:
    return {
        "tokens": work.tokens,
        "flops": work.flops,
        "flops_per_token": work.flops / work.tokens if work.tokens else None,
        "attention_share": work.attention_share,
        "ratio_to_6nd": work.ratio_to_6nd,
        "blocks": [_block_to_dict(row, work) for row in work.rows],
    }


def _block_to_dict(row: BlockWork, work: ModelWork) -> dict[str, Any]:
    return {
        "name": row.name,
        "number": row.blocks,
        "flops": row.flops,
        "flops_per_token": row.flops / work.tokens if work.tokens else None,
        "attention_flops": row.pair_flops,
        "active_parameters": row.active_weights,
        "parameters": row.weights,
    }
