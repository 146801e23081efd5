"""Sizes, lengths, rewards and advantages of a rollout batch, under AReaL's names."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.positions import count_prompt_tokens, is_at_predictions
from areal_callbacks.ppo.rows import enter_scope, record_counts
from areal_callbacks.ppo.tensors import drop_missing, move, to_bool


def log_batch_stats(batch: PolicyBatch, tracker: StatsTracker | None = None) -> None:
    """Record a batch of B sequences below ``ppo_actor/``; metrics of what is not given are not recorded.

    ====================================  ==================================================================  =========
    Key                                   Meaning                                                             Reduction
    ====================================  ==================================================================  =========
    n_seqs, n_tokens, n_valid_tokens      sequences; prompt and response tokens; tokens in the loss           sum
    correct_n_seqs, incorrect_n_seqs      scored sequences with task_reward > 0, ≤ 0                          sum
    advantages, kl_rewards, final_reward  ``/avg``, ``/min``, ``/max`` over the tokens in the loss            tokens
    task_reward                           ``/avg``, ``/min``, ``/max`` over scored sequences                  sequences
    prompt_len, seq_len                   ``/avg``, ``/min``, ``/max``                                        sequences
    no_eos_ratios                         ``/avg``, ``/min``, ``/max`` of 1 where a sequence was cut off      sequences
    ====================================  ==================================================================  =========

    Args:
        batch: its fields other than the log-probabilities and versions.
        tracker: None for the default tracker.
    """
    valid = to_bool(batch.mask)
    sequences = torch.ones(valid.shape[:1], dtype=torch.bool, device=valid.device)
    tokens = torch.ones_like(valid) if batch.attention_mask is None else to_bool(batch.attention_mask)
    per_token = {"advantages": batch.token_advantages, "kl_rewards": batch.kl_rewards}
    with enter_scope(tracker) as tracker:
        record_counts(tracker, n_seqs=sequences, n_tokens=tokens, n_valid_tokens=valid)
        tracker.stat_compact(valid, **drop_missing(**per_token, final_reward=batch.final_reward))
        if batch.task_reward is not None:
            _log_rewards(tracker, batch.task_reward, sequences if batch.scored is None else to_bool(batch.scored))
        tracker.stat_compact(sequences, **drop_missing(**_find_lengths(batch), no_eos_ratios=batch.no_eos))


def _log_rewards(tracker: StatsTracker, rewards: Tensor, scored: Tensor) -> None:
    """``rewards`` is ``[B]`` float, ``scored`` ``[B]`` bool."""
    scored = move(scored, rewards.device)
    record_counts(tracker, correct_n_seqs=(rewards > 0) & scored, incorrect_n_seqs=(rewards <= 0) & scored)
    tracker.stat_compact(scored, task_reward=rewards)


def _find_lengths(batch: PolicyBatch) -> dict[str, Tensor | None]:
    """``prompt_len`` and ``seq_len`` as ``[B]``, given or from the two masks; None if unknown."""
    prompt_len, seq_len = batch.prompt_len, batch.seq_len
    if batch.attention_mask is not None and seq_len is None:
        seq_len = to_bool(batch.attention_mask).sum(-1)
    if batch.attention_mask is not None and prompt_len is None:
        prompt_len = count_prompt_tokens(batch.attention_mask, batch.mask, _is_at_predictions(batch))
    return {"prompt_len": prompt_len, "seq_len": seq_len}


def _is_at_predictions(batch: PolicyBatch) -> Tensor | bool:
    if batch.mask_at_predictions is None and batch.versions is not None:
        return is_at_predictions(batch.mask, batch.versions)
    return bool(batch.mask_at_predictions)
