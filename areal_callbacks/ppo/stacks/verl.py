"""Batches of verl (0.9.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.stacks.fields import (
    mask_lengths,
    pad_nested,
    read_field,
    read_lengths,
    read_tensor,
    require,
)
from areal_callbacks.ppo.tensors import expand_to_tokens


def from_verl(batch: Any, *, versions: Tensor | None = None, current_version: int | None = None) -> PolicyBatch:
    """A batch of verl's PPO trainers after its advantages are computed, before ``update_actor``.

    Args:
        batch: a ``DataProto``, or its ``batch``, with ``response_mask`` ``[B, R]`` and ``attention_mask``
            ``[B, P + R]``; or the fields of the default trainer's TransferQueue (``prompts``, ``responses``,
            ``response_mask``, ``rm_scores``, ``old_log_probs``, …), jagged ``[B, j]`` as they come, or padded and with
            ``prompt_length`` and ``response_length`` ``[B]``.
        versions: of the weights that sampled, ``[B]`` or ``[B, R]``, e.g. the tags ``max_global_steps``.
        current_version: the version to compare with, ``global_steps - 1`` in verl.

    Raises:
        ValueError: the batch has no ``response_mask``, or a tensor has another shape.
    """
    batch = getattr(batch, "batch", batch)
    mask = require(read_tensor(batch, "response_mask"), "response_mask")
    scores = read_tensor(batch, "token_level_scores")
    scores = read_tensor(batch, "rm_scores") if scores is None else scores
    rewards = read_tensor(batch, "token_level_rewards")
    has_both = rewards is not None and scores is not None
    return PolicyBatch(
        mask,
        trainer_logp=read_tensor(batch, "old_log_probs"),
        rollout_logp=read_tensor(batch, "rollout_log_probs"),
        advantages=read_tensor(batch, "advantages"),
        kl_rewards=rewards - scores if has_both else None,  # type: ignore[operator]
        final_reward=scores if rewards is None else rewards,
        task_reward=None if scores is None else scores.sum(-1),
        versions=expand_to_tokens(None if versions is None else pad_nested(versions), mask),
        mask_at_predictions=False,
        current_version=current_version,
        **_read_lengths(batch, mask),
    )


def _read_lengths(batch: Any, mask: Tensor) -> dict[str, Tensor]:
    """``attention_mask``, ``prompt_len``, ``seq_len`` and ``no_eos``, as far as the batch tells them."""
    attention_mask = read_tensor(batch, "attention_mask")
    if attention_mask is not None:  # rows are padded to the longest response that is allowed
        width = attention_mask.shape[-1] - mask.shape[-1]
        in_prompt = attention_mask[:, :width].sum(-1)
        return {"attention_mask": attention_mask, "prompt_len": in_prompt, "no_eos": attention_mask[:, -1]}
    prompt_len, response_len = _read_length(batch, "prompt"), _read_length(batch, "response")
    if prompt_len is None or response_len is None:
        return {}
    seq_len = (prompt_len + response_len).long()
    tokens = mask_lengths(seq_len, max(int(seq_len.max()), mask.shape[-1]))
    return {"attention_mask": tokens, "prompt_len": prompt_len, "seq_len": seq_len}


def _read_length(batch: Any, part: str) -> Tensor | None:
    """``[B]``: told, or the lengths of the jagged tokens."""
    lengths: Tensor | None = read_field(batch, f"{part}_length")
    tokens = read_field(batch, f"{part}s")
    if lengths is None and isinstance(tokens, Tensor) and tokens.is_nested:
        return read_lengths(tokens)
    return lengths
