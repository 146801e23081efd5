"""The standard statistics of a batch and of a policy update, under AReaL's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.inputs import boolean, check_shapes, chosen, measurable, record_counts, selected


@dataclass(frozen=True)
class Clip:
    """Where a policy loss clips the importance ratio.

    Attributes:
        lower: the ratio below which tokens with a negative advantage are clipped; 0 for never.
        upper: the ratio above which tokens with a positive advantage are clipped.
        dual: the ratio above which tokens with a negative advantage are clipped; None for never.
        surrogate: the loss is PPO's -min(ρA, clip(ρ)A), so that it can be told without being handed over.
    """

    lower: float = 0.8
    upper: float = 1.2
    dual: float | None = None
    surrogate: bool = True


def log_batch_stats(
    mask: Tensor,
    *,
    tracker: StatsTracker | None = None,
    attention_mask: Tensor | None = None,
    advantages: Tensor | None = None,
    kl_rewards: Tensor | None = None,
    final_reward: Tensor | None = None,
    task_reward: Tensor | None = None,
    scored: Tensor | None = None,
    prompt_len: Tensor | None = None,
    seq_len: Tensor | None = None,
    no_eos: Tensor | None = None,
) -> None:
    """Record a batch of B sequences below ``ppo_actor/``; what is not given is not recorded.

    ====================================  ==================================================================  =========
    Key                                   Meaning                                                             Reduction
    ====================================  ==================================================================  =========
    n_seqs, n_tokens, n_valid_tokens      sequences; prompt and response tokens; tokens in the loss           sum
    correct_n_seqs, incorrect_n_seqs      sequences with task_reward > 0, ≤ 0                                 sum
    advantages, kl_rewards, final_reward  ``/avg``, ``/min``, ``/max`` over the tokens in the loss            tokens
    task_reward                           ``/avg``, ``/min``, ``/max`` over scored sequences                  sequences
    prompt_len, seq_len                   ``/avg``, ``/min``, ``/max``                                        sequences
    no_eos_ratios                         ``/avg``: fraction of sequences that were cut off                   sequences
    ====================================  ==================================================================  =========

    Args:
        mask: tokens in the loss (boolean or 0/1), ``[B, T]``.
        tracker: None for the default tracker.
        attention_mask: what is not padding, any shape; without it every position of ``mask`` counts into n_tokens, and
            lengths that are not given are not recorded.
        advantages, kl_rewards, final_reward: ``[B, T]``.
        task_reward: ``[B]``.
        scored: sequences that have a reward, ``[B]``; None for all.
        prompt_len, seq_len: ``[B]``; by default what the two masks tell.
        no_eos: sequences that did not end by themselves, ``[B]``.

    Raises:
        ValueError: a shape differs; nothing is recorded then.
    """
    if mask.dim() != 2:
        raise ValueError(f"mask has shape {list(mask.shape)}, expected [sequences, tokens]")
    valid = boolean(mask)
    check_shapes(mask, advantages=advantages, kl_rewards=kl_rewards, final_reward=final_reward)
    sequences = torch.ones(mask.shape[:1], dtype=torch.bool, device=mask.device)
    if attention_mask is not None and seq_len is None:
        seq_len = boolean(attention_mask).sum(-1)
        prompt_len = seq_len - valid.sum(-1) if prompt_len is None else prompt_len
    per_sequence = _given(task_reward=task_reward, prompt_len=prompt_len, seq_len=seq_len, no_eos_ratios=no_eos)
    check_shapes(sequences, scored=scored, **per_sequence)
    tokens = torch.ones_like(valid) if attention_mask is None else boolean(attention_mask)
    tracker = chosen(tracker)
    with tracker.disable_scope(), tracker.scope("ppo_actor"):
        record_counts(tracker, n_seqs=sequences, n_tokens=tokens, n_valid_tokens=valid)
        tracker.stat_compact(valid, **_given(advantages=advantages, kl_rewards=kl_rewards, final_reward=final_reward))
        rewards = per_sequence.pop("task_reward", None)
        if rewards is not None:
            scored = sequences if scored is None else boolean(scored)
            record_counts(tracker, correct_n_seqs=(rewards > 0) & scored, incorrect_n_seqs=(rewards <= 0) & scored)
            tracker.stat_compact(scored, task_reward=rewards)
        tracker.stat_compact(sequences, **per_sequence)


def log_update_stats(
    mask: Tensor,
    new_logp: Tensor,
    old_logp: Tensor,
    *,
    tracker: StatsTracker | None = None,
    advantages: Tensor | None = None,
    entropy: Tensor | None = None,
    loss: Tensor | None = None,
    clip: Clip | None = None,
    sequence_level: bool = False,
) -> None:
    """Record a forward of a policy update below ``ppo_actor/update/``; ``/avg``, ``/min``, ``/max`` over valid tokens.

    =====================================  ==============================================================  =========
    Key                                    Meaning                                                         Reduction
    =====================================  ==============================================================  =========
    importance_weight                      ρ = exp(new - old); with ``sequence_level`` exp of its mean     tokens
    approx_kl                              new - old                                                       tokens
    new_logp, old_logp, entropy            as given                                                        tokens
    actor_loss                             as given, or PPO's surrogate where ``clip`` says so             tokens
    clip_ratio, dual_clip_ratio            ``/avg``: fractions of tokens that are clipped                  tokens
    clip_ratio_low, clip_ratio_high        ``/avg``: those clipped at the lower and at the upper bound     tokens
    clipped_tokens, dual_clipped_tokens    their numbers                                                   sum
    n_valid_tokens                         number of tokens                                                sum
    =====================================  ==============================================================  =========

    Args:
        mask: tokens in the loss (boolean or 0/1), ``[..., T]``; all tensors have its shape.
        new_logp: log-probabilities under the policy that is optimised.
        old_logp: those before the update (proximal, if they are recomputed).
        tracker: None for the default tracker.
        advantages: needed for what depends on clipping.
        entropy: of the distribution at each position.
        loss: of each token.
        clip: where the loss clips; None for a loss that does not.
        sequence_level: the ratio is that of a whole sequence, per token (GSPO); sequences along the last dimension.

    Raises:
        ValueError: a shape differs.
    """
    check_shapes(mask, new_logp=new_logp, old_logp=old_logp, advantages=advantages, entropy=entropy, loss=loss)
    new = measurable(new_logp).double()
    old, valid = measurable(old_logp).to(new.device).double(), boolean(mask).to(new.device)
    difference = new - old
    ratio = torch.exp(_sequence_mean(difference, valid) if sequence_level else difference)
    stats = _given(importance_weight=ratio, approx_kl=difference, new_logp=new, old_logp=old, entropy=entropy)
    clipped: dict[str, Tensor] = {}
    if clip is not None and advantages is not None:
        advantages = measurable(advantages).to(new.device).double()
        clipped, surrogate = _clipped(ratio, advantages, clip)
        loss = surrogate if loss is None and clip.surrogate else loss
        stats |= {"clip_ratio": clipped["low"] | clipped["high"], "dual_clip_ratio": clipped["dual"]}
        stats |= {"clip_ratio_low": clipped["low"], "clip_ratio_high": clipped["high"]}
    stats |= _given(actor_loss=loss)
    tracker = chosen(tracker)
    with tracker.disable_scope(), tracker.scope("ppo_actor"), tracker.scope("update"):
        record_counts(tracker, n_valid_tokens=valid)
        tracker.stat_compact(valid, **stats)
        if clipped:
            tracker.denominator(clipped_tokens=stats["clip_ratio"] & valid, dual_clipped_tokens=clipped["dual"] & valid)


def combine_rewards(per_function: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of several reward functions ``[B, F]``, NaN being no reward, and who has any: ``[B]`` each."""
    given = ~torch.isnan(per_function)
    weighted = torch.where(given, per_function, 0.0).double() * weights.to(per_function.device).double()
    return weighted.sum(-1), given.any(-1)


def _clipped(ratio: Tensor, advantages: Tensor, clip: Clip) -> tuple[dict[str, Tensor], Tensor]:
    """Tokens clipped at each bound, and the surrogate loss."""
    pushed_down = advantages < 0
    dual = pushed_down & (ratio > clip.dual) if clip.dual is not None else torch.zeros_like(pushed_down)
    clipped = {"low": pushed_down & (ratio < clip.lower), "high": (advantages > 0) & (ratio > clip.upper), "dual": dual}
    bounded = ratio if clip.dual is None else ratio.clamp(max=clip.dual)
    surrogate = -torch.minimum(bounded * advantages, ratio.clamp(clip.lower, clip.upper) * advantages)
    return clipped, surrogate


def _sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    mean = selected(values, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return mean.expand_as(values)


def _given(**tensors: Tensor | None) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
