"""The statistics of a policy update, under AReaL's names."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.clip import ClippedTokens, compute_surrogate_loss, find_clipped
from areal_callbacks.ppo.rows import enter_scope, record_counts
from areal_callbacks.ppo.tensors import drop_missing, move, select, to_bool, to_float64_device
from areal_callbacks.ppo.update import PolicyUpdate


def log_update_stats(update: PolicyUpdate, tracker: StatsTracker | None = None) -> None:
    """Record a forward of a policy update below ``ppo_actor/update/``; ``/avg``, ``/min``, ``/max`` over valid tokens.

    =====================================  ==============================================================  =========
    Key                                    Meaning                                                         Reduction
    =====================================  ==============================================================  =========
    importance_weight                      ρ = exp(new - old); with ``sequence_level`` exp of its mean     tokens
    approx_kl                              new - old, with this sign in AReaL                              tokens
    new_logp, old_logp, entropy            as given                                                        tokens
    actor_loss                             as given, or PPO's surrogate where ``clip`` says so             tokens
    clip_ratio, dual_clip_ratio            1 for a clipped token, else 0                                   tokens
    clip_ratio_low, clip_ratio_high        the same for the lower and for the upper bound                  tokens
    clipped_tokens, dual_clipped_tokens    their numbers                                                   sum
    n_valid_tokens                         number of tokens                                                sum
    =====================================  ==============================================================  =========

    Args:
        update: the forward.
        tracker: None for the default tracker.
    """
    ratios = _compute_ratios(update)
    clipped, loss = _clip(update, ratios.importance_weight)
    stats = ratios._asdict() | drop_missing(entropy=update.entropy) | _name(clipped) | drop_missing(actor_loss=loss)
    valid = move(to_bool(update.mask), ratios.new_logp.device)
    with enter_scope(tracker, "update") as tracker:
        record_counts(tracker, n_valid_tokens=valid)
        tracker.stat_compact(valid, **stats)
        if clipped is not None:
            counts = {"clipped_tokens": stats["clip_ratio"], "dual_clipped_tokens": clipped.dual}
            record_counts(tracker, **{name: flags & valid for name, flags in counts.items()})


class _Ratios(NamedTuple):
    """Float64, in the shape of the mask; named like the keys."""

    importance_weight: Tensor
    approx_kl: Tensor
    new_logp: Tensor
    old_logp: Tensor


def _compute_ratios(update: PolicyUpdate) -> _Ratios:
    new_logp = to_float64_device(update.new_logp).double()
    old_logp = move(to_float64_device(update.old_logp), new_logp.device).double()
    log_ratio = diff = new_logp - old_logp
    if update.sequence_level:
        log_ratio = _average_sequences(diff, move(to_bool(update.mask), diff.device))
    return _Ratios(torch.exp(log_ratio), diff, new_logp, old_logp)


def _average_sequences(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of each sequence's valid tokens at all its positions; float64 in the shape of the mask."""
    mean = select(values, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return mean.expand_as(values)


def _clip(update: PolicyUpdate, ratio: Tensor) -> tuple[ClippedTokens | None, Tensor | None]:
    """The clipped tokens and the loss, each None where it cannot be known."""
    clip, advantages = update.clip, update.token_advantages
    if clip is None or advantages is None:
        return None, update.loss
    advantages = move(to_float64_device(advantages), ratio.device).double()
    computed = update.loss is None and clip.surrogate
    loss = compute_surrogate_loss(ratio, advantages, clip) if computed else update.loss
    return find_clipped(ratio, advantages, clip), loss


def _name(clipped: ClippedTokens | None) -> dict[str, Tensor]:
    """Key → flags in the shape of the mask."""
    if clipped is None:
        return {}
    low, high, dual = clipped
    return {"clip_ratio": low | high, "dual_clip_ratio": dual, "clip_ratio_low": low, "clip_ratio_high": high}
