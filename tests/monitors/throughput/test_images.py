"""FLOPs of images against the tower's formula for each grid, which counted operators verify in tests/flops."""

from __future__ import annotations

import pytest
import torch
from transformers import CLIPVisionConfig, PixtralVisionConfig, Qwen2_5_VLConfig

from areal_callbacks.flops.towers import VisionTower, vision_tower
from areal_callbacks.monitors.throughput.images import TowerFlops


def qwen() -> VisionTower:
    vision = {"depth": 3, "hidden_size": 48, "num_heads": 4, "intermediate_size": 40, "out_hidden_size": 36}
    tower = vision_tower(Qwen2_5_VLConfig(vision_config={**vision, "fullatt_block_indexes": [1]}))
    assert tower is not None
    return tower


def tower_of(config: object) -> VisionTower:
    tower = vision_tower(config)
    assert tower is not None
    return tower


def test_grids_add_up_over_more_batches_than_wait() -> None:
    tower, generator = qwen(), torch.Generator().manual_seed(0)
    flops, expected = TowerFlops(tower), 0
    for _ in range(70):
        grids = 2 * torch.randint(1, 30, (3, 3), generator=generator)
        flops.add({"image_grid_thw": grids[:2], "video_grid_thw": grids[2:], "pixel_values": torch.zeros(9, 9)})
        expected += sum(tower.of_grid(*grid) for grid in grids.tolist())
    assert flops.take() == expected
    assert flops.take() == 0


def test_shapes_of_pixels_and_sizes_of_images() -> None:
    clip = tower_of(CLIPVisionConfig(hidden_size=32, num_attention_heads=4, intermediate_size=64, patch_size=14))
    flops = TowerFlops(clip)
    flops.add({"pixel_values": torch.zeros(3, 3, 28, 56)})
    assert flops.take() == 3 * clip.of_grid(1, 2, 4)
    pixtral = tower_of(PixtralVisionConfig(hidden_size=32, num_attention_heads=4, intermediate_size=64, patch_size=16))
    flops = TowerFlops(pixtral)
    flops.add({"pixel_values": torch.zeros(2, 3, 64, 64), "image_sizes": torch.tensor([[64, 32], [16, 64]])})
    assert flops.take() == pixtral.of_grid(1, 4, 2) + pixtral.of_grid(1, 1, 4)


def test_a_frozen_tower_has_one_pass_of_three() -> None:
    tower = qwen()
    flops = TowerFlops(tower)
    flops.passes = 1
    flops.add({"image_grid_thw": torch.tensor([[1, 4, 6]])})
    assert 3 * flops.take() == tower.of_grid(1, 4, 6)


def test_images_whose_sizes_cannot_be_read_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    flops = TowerFlops(qwen())
    for _ in range(2):
        flops.add({"pixel_values": torch.zeros(1, 2, 3, 28, 28)})
        flops.add({"input_ids": torch.zeros(1, 2), "pixel_values": None})
    assert flops.take() == 0
    assert caplog.text.count("sizes of images cannot be read") == 1


def test_a_step_waits_for_no_device() -> None:
    """On a device without values, whatever reads one raises."""
    flops = TowerFlops(qwen())
    for _ in range(70):
        flops.add({"image_grid_thw": torch.ones(2, 3, dtype=torch.int64, device="meta")})
