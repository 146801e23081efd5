"""The compiled polynomial and the blocks that it is made of."""

from __future__ import annotations

import dataclasses
import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.flops import blocks, estimator
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block, TrainingFlops, training_flops
from areal_callbacks.flops.masks import (
    Band,
    Bidirectional,
    Causal,
    Chunked,
    Compressed,
    Relative,
    Sliding,
    causal_pairs,
)


@given(length=st.integers(0, 60), window=st.integers(1, 70))
def test_causal_pairs_are_those_of_the_mask(length: int, window: int) -> None:
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    assert causal_pairs(length, window) == int(((distance >= 0) & (distance < window)).sum())


@given(length=st.integers(0, 60), size=st.integers(1, 70))
def test_pairs_of_the_other_masks(length: int, size: int) -> None:
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    visited = {
        Causal(): key <= query,
        Sliding(size): (key <= query) & (query - key < size),
        Chunked(size): (key <= query) & (key // size == query // size),
        Bidirectional(): key == key + 0 * query,
        Band(size): abs(query - key) <= size,
    }
    for mask, seen in visited.items():
        assert mask.pairs(length) == int(seen.sum())
        assert TrainingFlops(0, 0, (), ((mask, 6),), once=5)(length) == (6 * int(seen.sum()) + 5 if length else 0)
    for selected in (None, 1, 3, 70):
        counts = [min((t + 1) // size, size * 70 if selected is None else selected) for t in range(length)]
        assert Compressed(size, selected).pairs(length) == sum(counts)
    assert Relative(size).pairs(length) == sum(2 * min(length, size) for _ in range(length))


@given(length=st.integers(0, 10**6), a=st.integers(0, 10**15), b=st.integers(0, 10**9), c=st.integers(0, 10**9))
def test_the_sum_is_exact(length: int, a: int, b: int, c: int) -> None:
    wide_window = TrainingFlops(a, b, ((10**6, c),))
    assert wide_window(length) == a * length + b * length * (length + 1) + c * (length * (length + 1) // 2)


@pytest.mark.parametrize("length", [True, False, 1.0, 4.5, float("nan"), "4", None, [4], np.float64(4), np.bool_(True)])
def test_what_is_no_integer_is_no_length(length: object) -> None:
    with pytest.raises(TypeError, match="nonnegative int"):
        TrainingFlops(3, 2)(length)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [-1, -(10**9), np.int64(-2)])
def test_negative_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="nonnegative int"):
        TrainingFlops(3, 2)(length)


def test_integers_of_arrays_are_lengths_and_do_not_overflow() -> None:
    estimate = TrainingFlops(10**18, 1)(np.int32(100))
    assert estimate == 10**20 + 10100
    assert type(estimate) is int


def test_the_representation_shows_the_coefficients() -> None:
    assert repr(TrainingFlops(1, 2, ((128, 3),))) == "TrainingFlops(a=1, b=2, windows=((128, 3),))"
    assert repr(TrainingFlops(1, 0, once=4)) == "TrainingFlops(a=1, b=0, windows=(), once=4)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainingFlops(1, 2).a = 3  # type: ignore[misc]


def test_windows_of_one_size_are_pooled_and_layers_without_attention_have_none() -> None:
    layers = [Block(Macs(0, 1), 8), Block(Macs(0, 2), 8), Block(Macs(0, 4), 4), Block(Macs(0, 8)), Block(Macs(16))]
    assert training_flops(layers, Macs(32)) == TrainingFlops(6 * 48, 3 * 8, ((4, 24), (8, 18)))


def test_documented_example() -> None:
    results = doctest.testmod(estimator)
    assert results.attempted > 0
    assert results.failed == 0


def test_blocks_without_gates() -> None:
    assert blocks.feed_forward(hidden_size=5, intermediate_size=7, gated=False) == Macs(2 * 5 * 7)
    assert blocks.shared_expert(hidden_size=5, intermediate_size=7, gated=False, weighted_by_token=True) == Macs(75)
    experts = blocks.routed_experts(
        hidden_size=5, intermediate_size=7, num_experts=11, num_experts_per_tok=3, gated=False
    )
    assert experts == Macs(5 * 11 + 3 * 2 * 5 * 7, unused=8 * 2 * 5 * 7)


def test_delta_net_by_hand() -> None:
    """Keys 2·3 and values 5·7 wide: projections and output, convolution, three 3 by 7 products for each of 5 heads."""
    block = blocks.gated_delta_net(
        hidden_size=11, num_key_heads=2, num_value_heads=5, key_head_dim=3, value_head_dim=7, conv_kernel_size=4
    )
    projections = 11 * (6 + 6 + 35) + 11 * 35 + 11 * 5 + 11 * 5 + 35 * 11
    recurrence = 3 * 5 * 3 * 7
    assert block == Macs(projections + 4 * (6 + 6 + 35) + recurrence, unweighted=recurrence)
