"""Every model type against the model itself: counted operators, weights, attention that is really visited."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.counted_flops import (
    build_model,
    counted_forward_flops,
    dense_forward_flops,
    forward,
    matrices,
)
from support.flops_references import REFERENCE_MODELS, build_config
from support.recurrent_forms import use_recurrent_forms
from support.tiny_models import SAME_AS, VARIANTS, fields_of
from torch.utils.flop_counter import FlopCounterMode

from areal_callbacks.flops import TrainingFlops, get_flops_estimator
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.models import ARCHITECTURES

LENGTHS = (1, 4, 9)
VERIFIED = [*(name for name in ARCHITECTURES if name not in SAME_AS), *VARIANTS]

COUNTED_BESIDE: dict[str, Callable[[Any, int], int]] = {
    # With blocks of one token the block-wise form is the recurrence, but for the token's own key and value, which it
    # multiplies apart from the state.
    "minimax": lambda config, length: (
        2 * length * config.layer_types.count("linear_attention") * 2 * config.num_attention_heads * config.head_dim
    ),
}
"""Model type → FLOPs that an eager implementation spends beside the block's own mathematics."""


@dataclass(frozen=True)
class Measured:
    """A small model and what it was seen to do: FLOPs of a forward pass by length, and its weights."""

    config: Any
    flops: dict[int, int]
    weights: int


@functools.cache
def measure(name: str) -> Measured:
    config = build_config(fields_of(name))
    device = "cpu" if config.model_type in ON_CPU else "meta"
    with pytest.MonkeyPatch.context() as patch:
        use_recurrent_forms(patch, config)
        model = build_model(config, device)
        flops = {length: counted_forward_flops(model, length) for length in LENGTHS}
    return Measured(config, flops, sum(weights.numel() for _, weights in matrices(model)))


ON_CPU = ("bloom", "openai-gpt", "opt")
"""Models that cannot run on the meta device: they read values of the mask, or take none with an entry for each pair."""


def estimator_of(config: Any) -> TrainingFlops:
    estimator = get_flops_estimator(config)
    assert isinstance(estimator, TrainingFlops)
    return estimator


@pytest.mark.parametrize("name", VERIFIED)
def test_models_execute_the_estimated_operations(name: str) -> None:
    measured = measure(name)
    estimator = estimator_of(measured.config)
    beside = COUNTED_BESIDE.get(measured.config.model_type, lambda config, length: 0)
    expected = {n: dense_forward_flops(estimator, n) + beside(measured.config, n) for n in LENGTHS}
    assert measured.flops == expected


@pytest.mark.parametrize("name", VERIFIED)
def test_blocks_have_the_weights_of_the_model(name: str) -> None:
    measured = measure(name)
    stack = ARCHITECTURES[measured.config.model_type]
    fields = Fields(measured.config, name, stack.names)
    blocks = [*(block.macs for block in stack.blocks(fields)), stack.head(fields)]
    assert sum(macs.weights for macs in blocks) == measured.weights
    assert estimator_of(measured.config).a == 6 * sum(macs.active_weights + macs.unweighted for macs in blocks)


def test_every_built_in_architecture_is_verified_here() -> None:
    assert {*VERIFIED} - VARIANTS.keys() | SAME_AS.keys() == ARCHITECTURES.keys()
    for model_type, verified in SAME_AS.items():
        assert ARCHITECTURES[model_type] == ARCHITECTURES[verified]


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_published_models_execute_the_estimated_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(REFERENCE_MODELS[name])
    use_recurrent_forms(monkeypatch, config)
    model, estimator = build_model(config), estimator_of(config)
    recurrent = "linear_attention" in (getattr(config, "layer_types", None) or ())
    length = 16 if recurrent else 4096
    assert counted_forward_flops(model, length) == dense_forward_flops(estimator, length)


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_work_per_token_of_published_models_is_six_times_their_active_weights(name: str) -> None:
    config = build_config(REFERENCE_MODELS[name])
    active = 0
    for parameter, weights in matrices(build_model(config)):
        selected = config.num_experts_per_tok if ".experts." in parameter else 1
        active += weights.numel() * selected // (weights.shape[0] if ".experts." in parameter else 1)
    recurrences = (getattr(config, "layer_types", None) or []).count("linear_attention")
    if recurrences:
        heads = config.linear_num_value_heads
        active += recurrences * 3 * heads * config.linear_key_head_dim * config.linear_value_head_dim
    assert estimator_of(config).a == 6 * active


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_training_executes_three_times_the_forward_operations(model_type: str) -> None:
    model = build_model(build_config(fields_of(model_type)), "cpu").train()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(7)[None] + 3, use_cache=False).logits.sum().backward()
    assert counter.get_total_flops() == 3 * counted_forward_flops(model, 7)


ATTENTION_WEIGHTS = [
    "apertus", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "dots1", "exaone4", "gemma2", "gemma3_text",
    "glm4_moe", "gpt_neo", "gpt_oss", "granite_swa", "hy_v3", "jamba", "llama", "mellum", "minimax", "ministral",
    "mistral", "mixtral", "olmo3", "opt", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_5_text",
    "smollm3", "starcoder2", "vaultgemma", *VARIANTS,
]  # fmt: skip
"""Models that put out their attention weights; each kind of window is among them."""


@pytest.mark.parametrize("name", ATTENTION_WEIGHTS)
def test_attention_visits_the_estimated_pairs(name: str) -> None:
    config = build_config(fields_of(name))
    stack, model = ARCHITECTURES[config.model_type], build_model(config, "cpu")
    patterns = [block.pattern for block in stack.blocks(Fields(config, name, stack.names)) if block.macs.per_pair]
    for length in (1, 4, 5, 6, 13):
        weights = [layer for layer in forward(model, length, output_attentions=True).attentions if layer is not None]
        visited = [int((layer > 0).sum()) // layer.shape[1] for layer in weights if layer.shape[-1] == length]
        assert sorted(visited) == sorted(pattern.pairs(length) for pattern in patterns)
