"""Vision towers against counted operators."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING

from areal_callbacks.flops.towers import VisionTower, vision_tower

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim"), 48),
    **dict.fromkeys(("depth", "num_hidden_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "num_heads"), 4),
    "intermediate_size": 40,
    "image_size": 28,
    "patch_size": 7,
    "spatial_merge_size": 2,
    "out_hidden_size": 36,
    "window_size": 28,
    "fullatt_block_indexes": [1],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}
PLAIN = {
    "clip_vision_model": "CLIPVisionModel",
    "dinov2": "Dinov2Model",
    "pixtral": "PixtralVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
    "vit": "ViTModel",
}
"""Type → class."""
QWEN = {
    "qwen2_vl_vision": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl_vision": "Qwen2_5_VisionTransformerPretrainedModel",
    "qwen3_vl_vision": "Qwen3VLVisionModel",
    "qwen3_vl_moe_vision": "Qwen3VLMoeVisionModel",
    "qwen3_5_vision": "Qwen3_5VisionModel",
    "qwen3_5_moe_vision": "Qwen3_5MoeVisionModel",
}
OUTSIDE = {"vit": 48 * 48}
"""Multiply-adds of a pooler that belongs to no tower."""


def build(model_type: str, class_name: str) -> tuple[Any, torch.nn.Module]:
    config_class = CONFIG_MAPPING[model_type]
    known = inspect.signature(config_class).parameters
    config = config_class(**{name: value for name, value in SMALL.items() if name in known})
    modeling = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    torch.manual_seed(0)
    model = getattr(modeling, class_name)._from_config(config, attn_implementation="eager")
    return config, model.eval().requires_grad_(False)


def tower_of(config: Any) -> VisionTower:
    tower = vision_tower(config)
    assert tower is not None
    assert vision_tower(config.to_dict()) == tower
    assert vision_tower({"model_type": "some_composite", "vision_config": config.to_dict()}) == tower
    return tower


@pytest.mark.parametrize("model_type", PLAIN)
def test_plain_towers_execute_the_estimated_operations(model_type: str) -> None:
    config, model = build(model_type, PLAIN[model_type])
    with FlopCounterMode(display=False) as counter:
        model(pixel_values=torch.zeros(1, 3, 28, 28))
    assert 3 * (counter.get_total_flops() - 2 * OUTSIDE.get(model_type, 0)) == tower_of(config)(28, 28)


@pytest.mark.parametrize("grid", [(1, 4, 8), (2, 6, 10)])
@pytest.mark.parametrize("model_type", QWEN)
def test_grids_of_patches_execute_the_estimated_operations(model_type: str, grid: tuple[int, int, int]) -> None:
    config, model = build(model_type, QWEN[model_type])
    frames, height, width = grid
    patches = torch.zeros(frames * height * width, 3 * 2 * 7 * 7)
    with FlopCounterMode(display=False) as counter:
        model(patches, grid_thw=torch.tensor([grid]))
    tower = tower_of(config)
    assert 3 * counter.get_total_flops() == tower.of_grid(*grid)
    assert tower(7 * height, 7 * width, 2 * frames) == tower.of_grid(*grid)


def test_unknown_towers_have_none() -> None:
    assert vision_tower({"model_type": "resnet"}) is None
    assert vision_tower(None) is None
