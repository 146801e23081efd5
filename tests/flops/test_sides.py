"""Classes that have one side of an encoder–decoder, or another head than the one that generates, by their operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from support.counted_flops import dense_forward_flops, dense_pair_flops, forward, target_length
from support.flops_references import build_config
from support.tiny_models import fields_of
from torch.utils.flop_counter import FlopCounterMode

from areal_callbacks.flops import TrainingFlops, get_flops_estimator
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops

LENGTH = 9


def build(model_type: str, name: str) -> Any:
    config = build_config(fields_of(model_type))
    config.use_cache, config._attn_implementation = False, "eager"
    torch.manual_seed(0)
    return getattr(transformers, name)(config).eval()


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("t5", "T5EncoderModel"),
        ("mt5", "MT5EncoderModel"),
        ("t5", "T5ForTokenClassification"),
        ("switch_transformers", "SwitchTransformersEncoderModel"),
        ("bart", "BartForCausalLM"),
        ("marian", "MarianForCausalLM"),
    ],
)
def test_one_side_alone(model_type: str, name: str) -> None:
    model = build(model_type, name)
    estimate = get_flops_estimator(model.config, model_class=name)
    assert isinstance(estimate, TrainingFlops)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(3, 3 + LENGTH)[None])
    assert counter.get_total_flops() == dense_forward_flops(estimate, LENGTH)


@pytest.mark.parametrize(
    ("model_type", "name"), [("t5", "T5Model"), ("bart", "BartModel"), ("t5", "T5ForConditionalGeneration")]
)
def test_both_sides_with_the_head_of_the_class(model_type: str, name: str) -> None:
    model = build(model_type, name)
    estimate = get_flops_estimator(model.config, model_class=name)
    assert isinstance(estimate, EncoderDecoderFlops)
    with FlopCounterMode(display=False) as counter:
        forward(model, LENGTH)
    assert counter.get_total_flops() == dense_pair_flops(estimate, LENGTH, target_length(LENGTH))
