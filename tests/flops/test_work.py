"""The tables of blocks say what the estimators say."""

from __future__ import annotations

import pytest
from support.flops_references import REFERENCE_MODELS, build_config
from support.tiny_models import TINY, VARIANTS, fields_of

from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.work import model_work


@pytest.mark.parametrize("name", [*TINY, *VARIANTS])
def test_blocks_add_up_to_the_estimate(name: str) -> None:
    config = build_config(fields_of(name))
    estimate = get_flops_estimator(config)
    assert estimate is not None
    for length in (0, 1, 13):
        work = model_work(config, length)
        assert work is not None
        assert work.flops == estimate(length)
    if isinstance(estimate, EncoderDecoderFlops):
        work = model_work(config, 9, 4)
        assert work is not None
        assert work.flops == estimate(9, 4)
        assert work.tokens == 13


def test_a_dense_model_by_hand() -> None:
    """Llama-3-8B: 32 layers, hidden size 4096, 8 of 32 heads with keys, MLPs of 14336, 128256 words."""
    work = model_work(build_config(REFERENCE_MODELS["Llama-3-8B"]), 4096)
    assert work is not None
    attention, mlp, head = work.rows
    assert (attention.name, mlp.name, head.name) == ("attention", "mlp", "head")
    assert attention.blocks == mlp.blocks == 32
    assert mlp.active_weights == mlp.weights == 32 * 3 * 4096 * 14336
    assert mlp.flops == 6 * 4096 * mlp.weights
    assert attention.pair_flops == 6 * 32 * 2 * 4096 * 4096 * 4097 // 2
    assert head.flops == 6 * 4096 * 4096 * 128256
    assert work.parameters == work.active_parameters == 7504658432
    assert work.attention_share == attention.pair_flops / work.flops
    assert work.ratio_to_6nd == pytest.approx(1 / (1 - work.attention_share))


def test_parameters_of_a_mixture_by_hand() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts of 768 in each of 48 layers."""
    work = model_work(build_config(REFERENCE_MODELS["Qwen3-30B-A3B"]), 4096)
    assert work is not None
    experts = next(row for row in work.rows if row.name == "experts")
    assert experts.active_weights == 48 * (8 * 3 * 2048 * 768 + 2048 * 128)
    assert experts.weights == 48 * (128 * 3 * 2048 * 768 + 2048 * 128)


def test_unknown_types_have_no_table() -> None:
    assert model_work({"model_type": "resnet"}, 5) is None
