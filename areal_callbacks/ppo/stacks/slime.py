"""Rollout data of slime (0.3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.stacks.fields import mask_lengths, pad_rows, require


def from_slime(
    rollout_data: Mapping[str, Any],
    *,
    weight_versions: Sequence[Sequence[str]] | None = None,
    current_version: int | None = None,
) -> PolicyBatch:
    """The ``rollout_data`` of a training actor after ``compute_advantages_and_returns``, without context parallelism.

    Every field is a list with one entry per sample: ``loss_masks``, ``log_probs``, ``rollout_log_probs`` and
    ``advantages`` are ``[response_length]``, ``total_lengths``, ``response_lengths``, ``raw_reward`` and ``truncated``
    numbers.

    Args:
        rollout_data: the dictionary.
        weight_versions: ``Sample.weight_versions`` of every sample: text, one for each generation call. The versions of
            a sample that several versions generated are not known token by token, so that it is not counted.
        current_version: the version to compare with.

    Raises:
        ValueError: there is no ``loss_masks``, or a tensor has another shape.
    """
    mask = require(pad_rows(rollout_data, "loss_masks"), "loss_masks")
    return PolicyBatch(
        mask,
        trainer_logp=pad_rows(rollout_data, "log_probs"),
        rollout_logp=pad_rows(rollout_data, "rollout_log_probs", torch.float32),
        advantages=pad_rows(rollout_data, "advantages", torch.float32),
        task_reward=_read_numbers(rollout_data, "raw_reward"),
        no_eos=_read_numbers(rollout_data, "truncated"),
        versions=None if weight_versions is None else _expand_versions(weight_versions, mask),
        mask_at_predictions=False,
        current_version=current_version,
        **_read_lengths(rollout_data, mask),
    )


def _read_lengths(rollout_data: Mapping[str, Any], mask: Tensor) -> dict[str, Tensor]:
    total, response = (_read_numbers(rollout_data, name) for name in ("total_lengths", "response_lengths"))
    if total is None or response is None:
        return {}
    width = max(int(total.max()), mask.shape[-1])
    return {"attention_mask": mask_lengths(total, width), "seq_len": total, "prompt_len": total - response}


def _read_numbers(rollout_data: Mapping[str, Any], name: str) -> Tensor | None:
    numbers = rollout_data.get(name)
    return None if numbers is None else torch.as_tensor(numbers)


def _expand_versions(weight_versions: Sequence[Sequence[str]], mask: Tensor) -> Tensor:
    """Int64 ``[B, T]``: the version of a sample that one version generated, else -1."""
    single = [versions[0] if len(set(versions)) == 1 else "" for versions in weight_versions]
    numbers = torch.tensor([int(version) if str(version).isdecimal() else -1 for version in single])
    return numbers.to(mask.device).unsqueeze(-1).expand(mask.shape)
