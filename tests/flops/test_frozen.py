"""Frozen weights: against the operators that a real backward pass executes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from support.counted_flops import build_model, dense_training_flops
from support.flops_references import build_config
from support.tiny_models import fields_of
from torch.utils.flop_counter import FlopCounterMode

from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.frozen import skip_weight_gradients
from areal_callbacks.flops.models import ARCHITECTURES
from areal_callbacks.flops.models.decoders import DECODERS

LENGTH, LAYERS = 7, 4


def blocks_of(config: Any) -> tuple[list[Block], Macs]:
    stack, fields = DECODERS["llama"], Fields(config, "llama")
    return stack.blocks(fields), stack.head(fields)


def counted(config: Any, *, trained_from: int, head: bool, inputs: bool) -> int:
    """FLOPs of forward and backward with the layers from ``trained_from`` on, and perhaps the head, trained."""
    model = build_model(config, "cpu")
    for parameter in (p for layer in model.model.layers[trained_from:] for p in layer.parameters()):
        parameter.requires_grad_(True)
    model.lm_head.weight.requires_grad_(head)
    embedded = model.get_input_embeddings()(torch.arange(LENGTH)[None] + 3).requires_grad_(inputs)
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=embedded, use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("first", range(LAYERS + 1))
def test_frozen_layers_that_pass_gradients_save_a_third(first: int) -> None:
    config = build_config(fields_of("llama"))
    blocks, head = blocks_of(config)
    trained = [index // 2 >= first for index in range(len(blocks))]  # attention and MLP of each layer
    estimate = skip_weight_gradients(blocks, head, trained=trained, trained_head=True, input_gradients=True)
    expected = counted(config, trained_from=first, head=True, inputs=True)
    assert dense_training_flops(estimate, LENGTH) == expected


@pytest.mark.parametrize("first", range(LAYERS))
def test_layers_before_the_first_trained_one_only_run_forward(first: int) -> None:
    config = build_config(fields_of("llama"))
    blocks, head = blocks_of(config)
    trained = [index // 2 >= first for index in range(len(blocks))]
    estimate = skip_weight_gradients(blocks, head, trained=trained, trained_head=False)
    expected = counted(config, trained_from=first, head=False, inputs=False)
    assert dense_training_flops(estimate, LENGTH) == expected


def test_a_head_alone_needs_its_own_gradient_only() -> None:
    config = build_config(fields_of("llama"))
    blocks, head = blocks_of(config)
    estimate = skip_weight_gradients(blocks, head, trained=[False] * len(blocks), trained_head=True)
    expected = counted(config, trained_from=LAYERS, head=True, inputs=False)
    assert dense_training_flops(estimate, LENGTH) == expected


@pytest.mark.parametrize("model_type", ["llama", "qwen3_5_moe_text", "gpt_oss", "bert"])
def test_a_model_that_is_trained_throughout_is_counted_in_full(model_type: str) -> None:
    config = build_config(fields_of(model_type))
    stack = ARCHITECTURES[model_type]
    fields = Fields(config, model_type, stack.names)  # type: ignore[union-attr]
    blocks = stack.blocks(fields)  # type: ignore[union-attr]
    head = stack.head(fields)  # type: ignore[union-attr]
    estimate = skip_weight_gradients(blocks, head, trained=[1] * len(blocks), trained_head=True, input_gradients=True)
    assert estimate == get_flops_estimator(config)


def test_shares_of_a_block_by_hand() -> None:
    """A frozen product of 100 weights, an adapter of 10 beside it, half of another 100 trained."""
    blocks = [Block(Macs(100)), Block(Macs(10)), Block(Macs(100, 4, unweighted=20))]
    estimate = skip_weight_gradients(blocks, Macs(50), trained=[0, 1, Fraction(1, 2)], trained_head=False)
    weights = 100 + 10 * 3 + 80 * 2 + 40 + 50 * 2
    assert estimate(1) == 2 * (weights + 20 * 3 + 4 * 3)


@pytest.mark.parametrize(("trained", "message"), [([1], "1 entries for 2 blocks"), ([1, 2], "from 0 to 1, not 2")])
def test_shares_are_checked(trained: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        skip_weight_gradients([Block(Macs(1))] * 2, Macs(1), trained=trained, trained_head=True)
