"""Every model type against the model itself: counted operators, weights, attention that is really visited."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.counted_flops import (
    ALL_EXPERTS,
    build_model,
    counted_forward_flops,
    dense_forward_flops,
    dense_pair_flops,
    forward,
    left_out_head,
    matrices,
    target_length,
)
from support.flops_references import REFERENCE_MODELS, build_config
from support.recurrent_forms import use_recurrent_forms
from support.tiny_models import BESIDE_TOKENS, SAME_AS, TINY, VARIANTS, fields_of
from torch.utils.flop_counter import FlopCounterMode

from areal_callbacks.flops import TrainingFlops, get_flops_estimator
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.encoder_decoder import EncoderDecoder, EncoderDecoderFlops
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.models import ARCHITECTURES, ENCODER_DECODERS

LENGTHS = (3, 8)
VERIFIED = [*TINY, *VARIANTS]
PAIRED = [name for name in VERIFIED if VARIANTS.get(name, (name,))[0] in ENCODER_DECODERS and name != "whisper"]
SINGLE = [name for name in VERIFIED if name not in PAIRED and name != "whisper"]


@dataclass(frozen=True)
class Measured:
    """A small model and what it was seen to do: FLOPs of a forward pass by length, and its weights."""

    config: Any
    flops: dict[int, int]
    weights: int


@functools.cache
def measure(name: str) -> Measured:
    config = build_config(fields_of(name))
    with pytest.MonkeyPatch.context() as patch:
        use_recurrent_forms(patch, config)
        model = build_model(config)
        flops = {length: counted_forward_flops(model, length) for length in LENGTHS}
    weights = sum(weights.numel() for _, weights in matrices(model)) + left_out_head(model)
    return Measured(config, flops, weights)


def macs_of(config: Any) -> list[Macs]:
    """The multiply-adds of all blocks and the head."""
    stack = ARCHITECTURES[config.model_type]
    assert isinstance(stack, Stack)
    fields = Fields(config, config.model_type, stack.names)
    return [*(block.macs for block in stack.blocks(fields)), stack.head(fields)]


def estimator_of(config: Any) -> TrainingFlops:
    estimator = get_flops_estimator(config)
    assert isinstance(estimator, TrainingFlops)
    return estimator


@pytest.mark.parametrize("name", SINGLE)
def test_models_execute_the_estimated_operations(name: str) -> None:
    measured = measure(name)
    estimator = estimator_of(measured.config)
    unused = sum(macs.unused for macs in macs_of(measured.config)) if name in ALL_EXPERTS else 0
    assert measured.flops == {n: dense_forward_flops(estimator, n) + 2 * unused * n for n in LENGTHS}


@pytest.mark.parametrize("name", SINGLE)
def test_blocks_have_the_weights_of_the_model(name: str) -> None:
    measured = measure(name)
    blocks = macs_of(measured.config)
    assert sum(macs.weights for macs in blocks) == measured.weights
    assert estimator_of(measured.config).a == 6 * sum(macs.active_weights + macs.unweighted for macs in blocks)


@pytest.mark.parametrize("name", PAIRED)
def test_encoder_decoders_execute_the_estimated_operations(name: str) -> None:
    measured = measure(name)
    estimator = get_flops_estimator(measured.config)
    assert isinstance(estimator, EncoderDecoderFlops)
    unused = unused_of_both(measured.config) if name in ALL_EXPERTS else (0, 0)
    assert measured.flops == {
        n: dense_pair_flops(estimator, n, target_length(n)) + 2 * (unused[0] * n + unused[1] * target_length(n))
        for n in LENGTHS
    }


def unused_of_both(config: Any) -> tuple[int, ...]:
    architecture = ARCHITECTURES[config.model_type]
    assert isinstance(architecture, EncoderDecoder)
    stacks = (architecture.encoder, architecture.decoder)
    return tuple(
        sum(block.macs.unused for block in stack.blocks(Fields(config, config.model_type, stack.names)))
        for stack in stacks
    )


def test_whisper_convolves_its_spectrogram() -> None:
    config = build_config(fields_of("whisper"))
    model, estimator = build_model(config), get_flops_estimator(config)
    assert isinstance(estimator, EncoderDecoderFlops)
    for target in (1, 6):
        frames = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
        tokens = torch.zeros(1, target, dtype=torch.long)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(input_features=frames, decoder_input_ids=tokens, use_cache=False)
        assert counter.get_total_flops() == dense_pair_flops(estimator, config.max_source_positions, target)


def test_encoder_decoders_count_what_both_sequences_need() -> None:
    """BART by hand: 3 layers a side, hidden size 48, MLPs of 40, 97 words; 5 source and 3 target tokens."""
    estimate = get_flops_estimator(build_config(fields_of("bart")))
    assert isinstance(estimate, EncoderDecoderFlops)
    layer = 4 * 48 * 48 + 2 * 48 * 40
    encoder = 3 * (5 * layer + 5 * 5 * 2 * 48)
    cross = 3 * (3 * 2 * 48 * 48 + 5 * 2 * 48 * 48 + 3 * 5 * 2 * 48)
    decoder = 3 * (3 * layer + 6 * 2 * 48) + 3 * 48 * 97
    assert estimate(5, 3) == 6 * (encoder + cross + decoder)
    assert estimate(4) == estimate(4, 4)
    assert estimate(0, 0) == 0
    with pytest.raises(TypeError, match="nonnegative int"):
        estimate(5, 2.5)  # type: ignore[arg-type]


def test_every_built_in_architecture_is_verified_here() -> None:
    assert {*VERIFIED} - VARIANTS.keys() | SAME_AS.keys() | BESIDE_TOKENS == ARCHITECTURES.keys()
    for model_type, verified in SAME_AS.items():
        assert ARCHITECTURES[model_type] == ARCHITECTURES[verified]


@functools.cache
def published(name: str) -> Any:
    """A published model on the meta device."""
    return build_model(build_config(REFERENCE_MODELS[name]))


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_published_models_execute_the_estimated_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(REFERENCE_MODELS[name])
    use_recurrent_forms(monkeypatch, config)
    model, estimator = published(name), estimator_of(config)
    recurrent = "linear_attention" in (getattr(config, "layer_types", None) or ())
    length = 3 if recurrent else 4096
    assert counted_forward_flops(model, length) == dense_forward_flops(estimator, length)


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_work_per_token_of_published_models_is_six_times_their_active_weights(name: str) -> None:
    config = build_config(REFERENCE_MODELS[name])
    active = 0
    for parameter, weights in matrices(published(name)):
        selected = config.num_experts_per_tok if ".experts." in parameter else 1
        active += weights.numel() * selected // (weights.shape[0] if ".experts." in parameter else 1)
    recurrences = (getattr(config, "layer_types", None) or []).count("linear_attention")
    if recurrences:
        heads = config.linear_num_value_heads
        active += recurrences * 3 * heads * config.linear_key_head_dim * config.linear_value_head_dim
    assert estimator_of(config).a == 6 * active


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_training_executes_three_times_the_forward_operations(model_type: str) -> None:
    model = build_model(build_config(fields_of(model_type)), "cpu").train().requires_grad_(True)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(7)[None] + 3, use_cache=False).logits.sum().backward()
    assert counter.get_total_flops() == 3 * counted_forward_flops(model, 7)


ATTENTION_WEIGHTS = [
    *("apertus", "bert", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "dots1", "exaone4", "gemma2", "gemma3_text"),
    *("gemma3n_text", "gemma4_text", "glm4_moe", "gpt_neo", "gpt_oss", "granite_swa", "hy_v3", "jamba", "llama"),
    *("llama4_text", "mellum", "mimo_v2_flash", "minimax", "ministral", "mistral", "mixtral", "modernbert"),
    *("modernbert-decoder", "olmo3", "opt", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("qwen3_5_text", "smollm3", "starcoder2", "vaultgemma", *(name for name in VARIANTS if name in SINGLE)),
]
"""Models that put out their attention weights; each kind of window is among them."""


@pytest.mark.parametrize("name", ATTENTION_WEIGHTS)
def test_attention_visits_the_estimated_pairs(name: str) -> None:
    config = build_config(fields_of(name))
    stack, model = ARCHITECTURES[config.model_type], build_model(config, "cpu")
    patterns = [block.pattern for block in stack.blocks(Fields(config, name, stack.names)) if block.macs.per_pair]
    for length in (4, 6, 13):
        weights = [layer for layer in forward(model, length, output_attentions=True).attentions if layer is not None]
        visited = [int((layer > 0).sum()) // layer.shape[1] for layer in weights if layer.shape[-1] == length]
        assert sorted(visited) == sorted(pattern.pairs(length) for pattern in patterns)
