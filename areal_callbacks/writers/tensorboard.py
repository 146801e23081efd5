"""Scalars, expert-load images and a ready-made Custom Scalars page for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
    from areal_callbacks.core.types import Export, Run

IMAGE_NAME = "expert_loads"

_IDLE, _UNDER, _IDEAL, _OVER, _NO_EXPERT = (0, 0, 0), (33, 102, 172), (247, 247, 247), (178, 24, 43), (128, 128, 128)
_DOUBLINGS = 2.0  # full colour at a quarter of the ideal load and at four times

_TRAIN_INFER = "ppo_actor/train_infer"
LAYOUT: dict[str, dict[str, list[Any]]] = {
    "Throughput": {
        "tokens per second": ["Multiline", [r"train_perf/(cumulative_)?tokens_per_second"]],
        "estimated FLOP/s": ["Multiline", [r"train_perf/(cumulative_)?estimated_flops_per_second"]],
    },
    "MoE balance": {
        "max over ideal, every layer": ["Multiline", [r"moe_balance/(.+/)?layer_\d+/max_over_ideal"]],
        "max over ideal, all layers": ["Multiline", [r"moe_balance/max_over_ideal_(max|mean)"]],
    },
    "Trainer and rollout": {
        f"{name} (average, extrema)": ["Margin", [f"{_TRAIN_INFER}/{name}/{part}" for part in ("avg", "min", "max")]]
        for name in ("logp_diff", "logp_abs_diff")
    },
}


class TensorBoardWriter:
    """Writes events with one image of layer × expert loads per stack; opens a SummaryWriter unless it is given one.

    Args:
        log_dir: folder of the event files; None: ``tensorboard`` in the run's output folder.
        summary_writer: the SummaryWriter of a host. It stays open at the end, and its host writes its own scalars.
        scalars: False if our scalars reach ``summary_writer`` by another way.
        layout: write the Custom Scalars page; False if the host has one, since TensorBoard shows one per run.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        *,
        summary_writer: Any = None,
        scalars: bool = True,
        layout: bool = True,
    ) -> None:
        self._log_dir = log_dir
        self._writer = summary_writer
        self._owner = summary_writer is None
        self._scalars = scalars
        self._layout = layout

    def open(self, run: Run) -> None:
        """Open the event file, and write the Custom Scalars page."""
        if self._owner:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._log_dir or run.output_dir / "tensorboard"))
        if self._layout:
            self._writer.add_custom_scalars(LAYOUT)

    def write(self, export: Export) -> None:
        """Scalars, those of the host if the event file is ours, and an image per stack."""
        scalars = {**(export.host if self._owner else {}), **(export.metrics if self._scalars else {})}
        for key, value in scalars.items():
            self._writer.add_scalar(key, float(value), export.step, walltime=export.time or None)
        for tag, image in expert_load_images(export.expert_loads).items():
            self._writer.add_image(tag, image, export.step, walltime=export.time or None, dataformats="HWC")
        if self._owner:
            self._writer.flush()

    def close(self) -> None:
        """Close the event file if it is ours."""
        if self._owner and self._writer is not None:
            self._writer.close()
            self._writer = None


def expert_load_images(loads: ExpertLoads | None) -> dict[str, Tensor]:
    """``{"moe_balance/expert_loads": image}`` with one uint8 RGB image ``[layers, experts, 3]`` per stack.

    One pixel per expert: white at the ideal load ``sum(c) / E``, blue below, red above on a log scale, black for an
    expert without an assignment, grey where a layer has fewer experts than the widest.
    """
    images = {}
    for stack in loads.stacks if loads else ():
        tag = "/".join(part for part in ("moe_balance", stack, IMAGE_NAME) if part)
        images[tag] = _image([layer for layer in loads or () if layer.stack == stack])
    return images


def _image(layers: Sequence[LayerLoads]) -> Tensor:
    width = max(len(layer.counts) for layer in layers)
    image = torch.tensor(_NO_EXPERT, dtype=torch.uint8).repeat(len(layers), width, 1)
    for row, layer in enumerate(layers):
        image[row, : len(layer.counts)] = _colours(layer.counts)
    return image


def _colours(counts: Tensor) -> Tensor:
    """uint8 ``[experts, 3]`` of int64 counts ``[experts]``."""
    under, ideal, over = (torch.tensor(colour, dtype=torch.float64) for colour in (_UNDER, _IDEAL, _OVER))
    ratio = counts.double() * len(counts) / counts.sum().clamp(min=1)
    level = (ratio.log2() / _DOUBLINGS).clamp(-1, 1)[:, None]
    colours = ideal + level.abs() * (torch.where(level < 0, under, over) - ideal)
    colours[counts == 0] = torch.tensor(_IDLE, dtype=torch.float64)
    return colours.round().to(torch.uint8)
