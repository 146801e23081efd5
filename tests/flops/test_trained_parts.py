"""Frozen parts of real models, LoRA among them, against the operators that their backward executes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.counted_flops import build_model, dense_training_flops
from support.flops_references import build_config
from support.tiny_models import fields_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.flops.estimator import TrainingFlops
from areal_callbacks.flops.trained_parts import skip_frozen

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # of PEFT

LENGTH = 7


def build(model_type: str = "llama") -> tuple[Any, nn.Module]:
    config = build_config(fields_of(model_type))
    return config, build_model(config, "cpu")


def estimate(model: nn.Module, config: Any) -> int:
    full = get_flops_estimator(config)
    assert isinstance(full, TrainingFlops)
    found = skip_frozen(model, config, full)
    assert found is not None
    return dense_training_flops(found, LENGTH)


def count(model: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(LENGTH)[None] + 3, use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["up_proj"], "all-linear"])
def test_adapters_whose_inputs_have_gradients(targets: Any) -> None:
    """As with gradient checkpointing: every frozen product passes gradients on."""
    config, model = build()
    model.enable_input_require_grads()
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets))
    assert estimate(adapted, config) == count(adapted)


def test_adapters_in_the_last_layer_leave_the_others_forward_only() -> None:
    """In that layer the estimate counts gradients that its inputs, its keys and its values do not need."""
    config, model = build()
    last = len(model.model.layers) - 1
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], layers_to_transform=[last]))
    layer = model.model.layers[last]
    of_inputs = [layer.self_attn.q_proj.base_layer, layer.self_attn.k_proj, layer.self_attn.v_proj]
    not_needed = sum(linear.weight.numel() for linear in of_inputs) + 2 * model.config.hidden_size
    pairs = LENGTH * LENGTH * config.num_attention_heads * config.head_dim
    assert estimate(adapted, config) == count(adapted) + 2 * LENGTH * not_needed + 2 * 2 * pairs


@pytest.mark.parametrize("part", ["self_attn", "mlp"])
def test_sides_of_a_layer_have_shares_of_their_own(part: str) -> None:
    config, model = build()
    for layer in model.model.layers:
        getattr(layer, part).requires_grad_(True)
    model.enable_input_require_grads()
    assert estimate(model, config) == count(model)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "gemma", "bert"])
def test_a_model_that_is_trained_throughout_is_counted_in_full(model_type: str) -> None:
    config, model = build(model_type)
    model.requires_grad_(True)
    full = get_flops_estimator(config)
    assert isinstance(full, TrainingFlops)
    assert skip_frozen(model, config, full) == full


def test_a_trained_head_alone() -> None:
    config, model = build()
    model.lm_head.weight.requires_grad_(True)
    assert estimate(model, config) == count(model)


def test_layers_that_cannot_be_found() -> None:
    config, _ = build()
    full = get_flops_estimator(config)
    assert isinstance(full, TrainingFlops)
    assert skip_frozen(nn.Linear(3, 3), config, full) is None
