"""How many frames of sound a model was given, without a host sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from torch import Tensor

_SOUND = ("input_features", "input_values")
_MASKS = ("attention_mask", "input_features_mask", "feature_attention_mask", "padding_mask")


_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_feat_size")
"""Of a configuration: the numbers of a spectrum frame."""


class FrameCounter:
    """Counts the frames of spectra ``[B, bins, frames]`` or ``[B, frames, bins]``, or of samples ``[B, frames]``.

    Padding is left out where a mask ``[B, frames]`` marks it.

    Attributes:
        has_seen: a model takes sound; from then on zero frames are a number.
    """

    def __init__(self) -> None:
        self.has_seen = False
        self._host = 0
        self._on_device: Tensor | None = None

    def add(self, inputs: Mapping[str, Any], config: Any = None) -> None:
        """The inputs of one training call of a model with this configuration."""
        sound = next((value for name in _SOUND if isinstance(value := inputs.get(name), Tensor)), None)
        if sound is None or sound.dim() not in (2, 3):
            return
        self.has_seen = True
        masks = (inputs.get(name) for name in _MASKS)
        mask = next((mask for mask in masks if _marks(mask, sound)), None)
        if mask is None:
            self._host += len(sound) * _count_frames(sound, config)
        else:
            frames = mask.count_nonzero()
            self._on_device = frames if self._on_device is None else self._on_device.to(frames.device) + frames

    def take(self) -> int:
        """Frames since the last call; copies from the device."""
        frames, self._host = self._host, 0
        if self._on_device is not None:
            frames, self._on_device = frames + int(self._on_device), None
        return frames


def _count_frames(sound: Tensor, config: Any) -> int:
    bins = [getattr(config, name, None) for name in _BINS]
    return int(sound.shape[-2] if sound.dim() == 3 and sound.shape[-1] in bins else sound.shape[-1])


def _marks(mask: Any, sound: Tensor) -> TypeGuard[Tensor]:
    return isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == len(sound) and mask.shape[1] in sound.shape[1:]
