"""The expert loads as small pictures, one pixel per expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from areal_callbacks.core.names import EXPERT_LOADS, name_in_stack

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads

_IDLE, _UNDER, _IDEAL, _OVER, _NO_EXPERT = (0, 0, 0), (33, 102, 172), (247, 247, 247), (178, 24, 43), (128, 128, 128)
_DOUBLINGS = 2.0  # full colour at a quarter of the ideal load and at four times


def draw_expert_loads(loads: ExpertLoads | None) -> dict[str, Tensor]:
    """``{"moe_balance/expert_loads": image}`` with one uint8 RGB image ``[layers, experts, 3]`` per stack.

    One pixel per expert: white at the ideal load ``sum(c) / E``, blue below, red above on a log scale, black for an
    expert without an assignment, grey where a layer has fewer experts than the widest.
    """
    images = {}
    for stack in loads.stacks if loads else ():
        layers = [layer for layer in loads or () if layer.stack == stack]
        images[name_in_stack(EXPERT_LOADS, stack)] = _draw_layers(layers)
    return images


def enlarge(image: Tensor, pixels: int = 768) -> Tensor:
    """``image`` with every pixel repeated, as often as ``pixels`` allows, for viewers that do not enlarge."""
    times = max(1, pixels // max(image.shape[:2]))
    return image.repeat_interleave(times, 0).repeat_interleave(times, 1)


def _draw_layers(layers: Sequence[LayerLoads]) -> Tensor:
    width = max(len(layer.counts) for layer in layers)
    image = torch.tensor(_NO_EXPERT, dtype=torch.uint8, device="cpu").repeat(len(layers), width, 1)
    for row, layer in enumerate(layers):
        image[row, : len(layer.counts)] = _colour(torch.tensor(layer.over_ideal(), dtype=torch.float64, device="cpu"))
    return image


def _colour(ratios: Tensor) -> Tensor:
    """uint8 ``[experts, 3]`` of loads over the ideal load, float64 ``[experts]``."""
    under, ideal, over = (torch.tensor(colour, dtype=torch.float64, device="cpu") for colour in (_UNDER, _IDEAL, _OVER))
    level = (ratios.log2() / _DOUBLINGS).clamp(-1, 1)[:, None]
    colours = ideal + level.abs() * (torch.where(level < 0, under, over) - ideal)
    colours[ratios == 0] = torch.tensor(_IDLE, dtype=torch.float64, device="cpu")
    return colours.round().to(torch.uint8)
