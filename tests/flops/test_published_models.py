"""Known integers of published models."""

from __future__ import annotations

import pytest
from support.flops_references import REFERENCE_MODELS, build_config

from areal_callbacks.flops import TrainingFlops, get_flops_estimator

COEFFICIENTS = {
    "Qwen3-30B-A3B": TrainingFlops(18249940992, 1179648),
    "Qwen3.5-35B-A3B": TrainingFlops(17960632320, 245760),
    "Llama-3-8B": TrainingFlops(45027950592, 786432),
    "DeepSeek-V3": TrainingFlops(219747581952, 7495680),
    "gpt-oss-20b": TrainingFlops(21642854400, 294912, ((128, 589824),)),
}
TRAINING_FLOPS = {
    "Qwen3-30B-A3B": {1: 18252300288, 4096: 94547799441408, 32768: 1864690116329472},
    "Qwen3.5-35B-A3B": {1: 17961123840, 4096: 77690925219840, 32768: 852424843591680},
    "Llama-3-8B": {1: 45029523456, 4096: 197631846383616, 32768: 2319926584934400},
    "DeepSeek-V3": {1: 219762573312, 4096: 1025873440407552, 32768: 15249359499165696},
    "gpt-oss-20b": {1: 21644034048, 4096: 93902585462784, 32768: 1028331172528128},
}


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficients(name: str) -> None:
    assert get_flops_estimator(build_config(REFERENCE_MODELS[name])) == COEFFICIENTS[name]


@pytest.mark.parametrize("name", TRAINING_FLOPS)
def test_integers(name: str) -> None:
    estimate = get_flops_estimator(build_config(REFERENCE_MODELS[name]))
    assert estimate is not None
    assert {length: estimate(length) for length in (1, 4096, 32768)} == TRAINING_FLOPS[name]
    assert type(estimate(4096)) is int
    assert estimate(0) == 0


def test_qwen3_by_hand() -> None:
    """The specified formula, written out for one layer of every kind of work."""
    attention = 2048 * 32 * 128 + 2 * 2048 * 4 * 128 + 32 * 128 * 2048
    experts = 8 * 3 * 2048 * 768 + 2048 * 128
    linear = 2 * (48 * (attention + experts) + 2048 * 151936)
    for length in (1, 100, 4096):
        causal = 48 * 2 * 32 * 128 * length * (length + 1)
        estimate = get_flops_estimator(build_config(REFERENCE_MODELS["Qwen3-30B-A3B"]))
        assert estimate is not None
        assert estimate(length) == 3 * (linear * length + causal)


def test_packed_sequences_are_summed() -> None:
    """Eight sequences of 4096 in one row are not one sequence of 32768."""
    estimate = get_flops_estimator(build_config(REFERENCE_MODELS["Qwen3-30B-A3B"]))
    assert estimate is not None
    assert estimate(8 * 4096) / (8 * estimate(4096)) == pytest.approx(2.465, abs=5e-4)
