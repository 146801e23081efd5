"""How many frames or samples an audio encoder is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from areal_callbacks.verify.token_tables import config_of

NAMES = ("input_features", "input_values")
"""Mel spectrograms and raw samples."""


def takes_audio(module: nn.Module, parameters: frozenset[str] | set[str]) -> bool:
    """Whether a module is a model of its own that is given audio."""
    return config_of(module) is not None and bool(parameters & set(NAMES)) and "pixel_values" not in parameters


def count_frames(arguments: Mapping[str, Any], config: Any) -> int:
    """Frames (``input_features``, ``[B, mel, T]`` or ``[B, T, mel]``) or samples (``input_values``, ``[B, T]``).

    A mask of the same length leaves padding out.
    """
    audio = next((value for name in NAMES if isinstance(value := arguments.get(name), Tensor)), None)
    if audio is None:
        return 0
    length = _length(audio, getattr(config, "num_mel_bins", None))
    mask = arguments.get("attention_mask")
    if isinstance(mask, Tensor) and tuple(mask.shape) == (len(audio), length):
        return int((mask != 0).sum())
    return len(audio) * length


def _length(audio: Tensor, bins: int | None) -> int:
    if audio.dim() < 3:
        return int(audio.shape[-1])
    return int(audio.shape[-1] if audio.shape[-2] == bins else audio.shape[-2])
