"""Experiences of OpenRLHF (0.11.2)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.stacks.fields import require


def from_openrlhf(
    experience: Any, *, versions: Tensor | None = None, current_version: int | None = None
) -> PolicyBatch:
    """An ``Experience`` after its advantages are computed.

    Its ``attention_mask`` is ``[B, S]``; ``action_mask``, ``action_log_probs``, ``rollout_log_probs`` and
    ``advantages`` are ``[B, S - 1]`` and run over prompt and response at the positions that predict.

    Args:
        experience: the object.
        versions: of the weights that sampled each action, ``[B, S - 1]``, aligned with ``action_mask``.
        current_version: the version to compare with.

    Raises:
        ValueError: there is no ``action_mask``, or a tensor has another shape.
    """
    return PolicyBatch(
        require(experience.action_mask, "action_mask"),
        attention_mask=experience.attention_mask,
        trainer_logp=experience.action_log_probs,
        rollout_logp=experience.rollout_log_probs,
        advantages=experience.advantages,
        task_reward=experience.rewards,
        no_eos=experience.truncated,
        versions=versions,
        mask_at_predictions=False,  # versions are given where the actions are
        current_version=current_version,
    )
