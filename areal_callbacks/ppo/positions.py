"""Where the tokens of a mask are: at themselves, or at the positions that predict them, one to the left."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.ppo.tensors import move, to_bool


def align_versions(versions: Tensor, mask: Tensor, mask_at_predictions: bool | None = None) -> Tensor:
    """The versions at the positions of the mask; in a copy where they have to be moved. Nothing waits for the device.

    Args:
        versions: integer ``[..., T]``, at the tokens; negative where none generated the token.
        mask: of the same shape, boolean or 0/1.
        mask_at_predictions: the mask is at the positions that predict the tokens. None: as the versions tell, see
            :func:`is_at_predictions`.
    """
    if mask_at_predictions is False:
        return versions
    moved = _move_to_predictions(versions)
    if mask_at_predictions:
        return moved
    return torch.where(is_at_predictions(mask, versions), moved, versions)


def is_at_predictions(mask: Tensor, versions: Tensor) -> Tensor:
    """Whether some token of the mask lacks a version, and none does once they are moved: bool ``[]``.

    A batch of AReaL has a version of -1 at the last token of a prompt, where its mask begins, and every generated token
    has one. Versions that are known of some tokens only have to be given with ``mask_at_predictions``.
    """
    mask = move(to_bool(mask), versions.device)
    missing = mask & (versions < 0)
    missing_once_moved = mask & (_move_to_predictions(versions) < 0)
    return missing.any() & ~missing_once_moved.any()


def count_prompt_tokens(attention_mask: Tensor, mask: Tensor, at_predictions: Tensor | bool = False) -> Tensor:
    """Tokens of each sequence before its first generated one: int64 ``[B]``; all of them where none was generated.

    Args:
        attention_mask: ``[B, S]`` 0/1: tokens of prompts and responses.
        mask: ``[B, T]`` 0/1, T ≤ S: its last position is that of the attention mask.
        at_predictions: bool, or bool ``[]``: masks of the same width are at the predicting positions.
    """
    attended = to_bool(attention_mask)
    generated = move(to_bool(mask), attended.device)
    width = attended.shape[-1]
    begin = generated.int().argmax(-1) + (width - generated.shape[-1])
    if generated.shape[-1] == width:
        begin = begin + (at_predictions if isinstance(at_predictions, bool) else move(at_predictions, begin.device))
    begin = torch.where(generated.any(-1), begin, width)
    before = torch.arange(width, device=attended.device) < begin.unsqueeze(-1)
    return (attended & before).sum(-1)


def _move_to_predictions(versions: Tensor) -> Tensor:
    """A copy moved one position to the left; the last position predicts nothing and gets -1."""
    moved = torch.roll(versions.detach(), -1, -1)
    moved[..., -1:] = -1
    return moved
