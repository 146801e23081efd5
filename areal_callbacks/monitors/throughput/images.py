"""The FLOPs of a vision tower for the images that training forwards were given, without a host sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor

from areal_callbacks.flops.towers import VisionTower
from areal_callbacks.safety.reporting import report_once

_BATCHES = 32
_GRIDS = ("image_grid_thw", "video_grid_thw")
_PASSES = 3


class TowerFlops:
    """Adds up what the FLOPs are linear in: five integers on the device of the first grids, whatever their number.

    Args:
        tower: its formula.

    Attributes:
        passes: of a product that are counted: forward, the gradients of inputs and of weights; 1 for a frozen tower.
    """

    def __init__(self, tower: VisionTower) -> None:
        self.passes = _PASSES
        self._tower = tower
        self._sums: Tensor | None = None
        self._waiting: list[Tensor] = []
        self._host = 0

    def add(self, inputs: Mapping[str, Any]) -> None:
        """Count the images of one batch: by their grids of patches, or else by the shape of ``pixel_values``."""
        grids = [inputs[name] for name in _GRIDS if _has_columns(inputs.get(name), 3)]
        pixels, sizes = inputs.get("pixel_values"), inputs.get("image_sizes")
        if grids:
            self._waiting += [grid.detach().clone() for grid in grids]
        elif not isinstance(pixels, Tensor) or pixels.dim() != 4:
            _report_unread(inputs)
        elif _has_columns(sizes, 2):  # pixels are padded to the largest image
            patches = sizes.detach() // self._tower.patch_size
            self._waiting.append(torch.cat([torch.ones_like(patches[:, :1]), patches], 1))
        else:
            self._host += len(pixels) * self._tower(*pixels.shape[-2:])
        if len(self._waiting) >= _BATCHES:
            self._fold()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _fold(self) -> None:
        device = self._waiting[0].device if self._sums is None else self._sums.device
        grids = torch.cat([grid.to(device, torch.int64, non_blocking=True) for grid in self._waiting])
        self._waiting.clear()
        sums = torch.stack(self._tower.sums(*grids.unbind(1))).sum(1)
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> int:
        """FLOPs since the last call; copies from the device."""
        if self._waiting:
            self._fold()
        sums, self._sums = self._sums, None
        flops, self._host = self._host, 0
        flops += 0 if sums is None else self._tower.of_sums(*sums.tolist())
        return flops * self.passes // _PASSES


def _report_unread(inputs: Mapping[str, Any]) -> None:
    if any(name.startswith("pixel_values") and value is not None for name, value in inputs.items()):
        report_once("flops:images", "the sizes of images cannot be read: their FLOPs in the vision tower are left out")


def _has_columns(value: Any, columns: int) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == columns
