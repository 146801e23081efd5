"""Models of two sequences: many pairs at once, and formulas of one's own for pairs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.flops_references import build_config
from support.tiny_models import fields_of

from areal_callbacks.flops import get_flops_estimator, register_flops_estimator
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.registry import takes_pairs

T5 = build_config(fields_of("t5"))


def t5() -> EncoderDecoderFlops:
    estimate = get_flops_estimator(T5)
    assert isinstance(estimate, EncoderDecoderFlops)
    return estimate


def by_hand(source: int, target: int) -> int:
    """T5 of 4 layers a side: hidden size 48, 4 heads of width 14, plain MLPs of 40, 97 words."""
    width, hidden = 4 * 14, 48
    layer = 4 * hidden * width + 2 * hidden * 40
    encoder = 4 * (layer * source + 2 * width * source**2)
    decoder = T5.num_decoder_layers * (layer * target + 2 * width * target * (target + 1) // 2) + hidden * 97 * target
    cross = T5.num_decoder_layers * (2 * hidden * width * (source + target) + 2 * width * source * target)
    return 6 * (encoder + decoder + cross)


@given(pairs=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=20))
def test_pairs_and_their_sums_cost_what_the_pairs_cost_one_by_one(pairs: list[tuple[int, int]]) -> None:
    expected = sum(by_hand(*pair) for pair in pairs)
    sources, targets = Counter(source for source, _ in pairs), Counter(target for _, target in pairs)
    assert t5().of_pairs(Counter(pairs)) == expected
    assert t5().of_sums(sources, targets, sum(source * target for source, target in pairs)) == expected


@given(length=st.integers(0, 400))
def test_one_length_stands_for_both(length: int) -> None:
    assert t5()(length) == t5()(length, length) == by_hand(length, length)


def test_what_the_two_lengths_have_in_common_is_their_product() -> None:
    """Which source goes with which target matters: 10 × 10 + 2 × 2 is not 10 × 2 + 2 × 10."""
    together, crossed = t5().of_pairs({(10, 10): 1, (2, 2): 1}), t5().of_pairs({(10, 2): 1, (2, 10): 1})
    assert together - crossed == 6 * T5.num_decoder_layers * 2 * 4 * 14 * (104 - 40)


@pytest.mark.parametrize(("sources", "targets"), [({3: 2}, {4: 1}), ({3: 1}, {0: 1})])
def test_sums_need_a_target_for_every_source(sources: dict[int, int], targets: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="needs a target of its own"):
        t5().of_sums(sources, targets, 0)


def test_formulas_of_ones_own_may_take_pairs() -> None:
    register_flops_estimator("mine", lambda config: lambda source, target: source * 10 + target)
    mine = get_flops_estimator({"model_type": "mine"})
    assert mine is not None
    assert mine(3, 4) == 34
    assert takes_pairs(mine)
    with pytest.raises(ValueError, match="nonnegative"):
        mine(3, -1)


def test_formulas_of_one_sequence_take_none() -> None:
    register_flops_estimator("mine", lambda config: lambda length: length)
    llama, mine = get_flops_estimator(fields_of("llama")), get_flops_estimator({"model_type": "mine"})
    assert llama is not None
    assert mine is not None
    assert not takes_pairs(llama)
    assert not takes_pairs(mine)
    assert takes_pairs(t5())
