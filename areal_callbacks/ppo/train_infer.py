"""How far the trainer's log-probabilities are from those that the rollout engine sampled with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.ppo.groups import log_by_advantage, log_by_age
from areal_callbacks.ppo.inputs import (
    boolean,
    check_shapes,
    chosen,
    chunks,
    filled,
    mean_rows,
    measurable,
    record,
    record_counts,
    selected,
)
from areal_callbacks.ppo.quantiles import log_bins, quantiles
from areal_callbacks.ppo.ratios import token_ratios
from areal_callbacks.ppo.sequences import log_sequence_stats

THRESHOLDS = (1.5, 2, 3, 5, 10)
_NO_OVERFLOW = 709.0
_LOG_THRESHOLDS = tuple(math.log(threshold) for threshold in THRESHOLDS)


def log_train_inference_stats(
    trainer_logp: Tensor,
    rollout_logp: Tensor,
    mask: Tensor,
    tracker: StatsTracker | None = None,
    *,
    extended: bool = True,
    versions: Tensor | None = None,
    current_version: int | None = None,
    advantages: Tensor | None = None,
) -> None:
    """Record ``ppo_actor/train_infer/`` for d = log p_trainer - log p_rollout on valid generated tokens.

    ===========================================  =========================================================  ==========
    Key                                          Meaning                                                    Reduction
    ===========================================  =========================================================  ==========
    logp_diff/{avg,min,max}                      d                                                          tokens
    logp_abs_diff/{avg,min,max}                  |d|                                                        tokens
    logp_diff_squared                            mean of d²                                                 tokens
    trainer_nll, rollout_nll                     mean of -log p                                             tokens
    kl_k1, kl_k2, kl_k3                          means of -d, d²/2, exp(d) - 1 - d                          tokens
    ratio_outside_{1.5,2,3,5,10}                 fraction with |d| > log t                                  tokens
    nonfinite_logp_fraction                      fraction with a NaN or infinite log-probability            tokens
    kl_k3_overflow_fraction                      fraction of finite ones whose expm1(d) is infinite         tokens
    n_valid_tokens                               number of tokens                                           sum
    ratio_above_{t}, ratio_below_{t}             fractions with d > log t, d < -log t                       tokens
    exact_match_fraction                         fraction with d = 0                                        tokens
    positive_logp_fraction                       fraction with a log-probability above 0, which none is     tokens
    logp_abs_diff/{p50,p90,p99,p99.9}            quantiles of |d|, off by at most 1/32                      derived
    ratio_mean, ratio_mean_standard_error        E[exp d] and its standard error                            derived
    chi2, ess_fraction                           E[exp 2d] - 1; (Σ exp d)² / (n Σ exp 2d)                   derived
    sequence_logp_diff_sum/{avg,min,max}         Σd of a sequence                                           sequences
    sequence_logp_diff_mean/{avg,min,max}        mean d of a sequence                                       sequences
    sequence_ratio_outside_{t}                   fraction with at least one token outside t                 sequences
    chi2_seq, log1p_chi2_seq                     E[exp 2Σd] - 1, and the logarithm of E[exp 2Σd]            derived
    by_age/{0,1,2,3_plus}/{logp_abs_diff,kl_k3}  means over tokens of that staleness                        tokens
    by_advantage/{positive,negative,zero}/{…}    the same means over tokens of that advantage               tokens
    ===========================================  =========================================================  ==========

    From ``ratio_above`` on they are extensions. Everything is computed in float64 from the masked tokens, in constant
    memory, and pooled over batches and ranks. If a valid token has a log-probability that is not finite, tails and
    quantiles are NaN. On accelerators nothing waits for the device.

    Args:
        trainer_logp: the trainer's log-probabilities of the sampled tokens; any shape and float dtype.
        rollout_logp: those of the rollout, aligned, same shape.
        mask: valid generated tokens (boolean or 0/1), same shape. In two dimensions each row is a sequence; sequence
            metrics need two or more dimensions.
        tracker: None for the default tracker. Its current scope plays no part.
        extended: also the extensions.
        versions: policy version that sampled each token, aligned with the mask; negative for none.
        current_version: the version that the trainer now holds.
        advantages: per token, aligned with the mask.

    Raises:
        ValueError: a tensor has not the mask's shape, also where it could be broadcast.
    """
    check_shapes(mask, trainer_logp=trainer_logp, rollout_logp=rollout_logp, versions=versions, advantages=advantages)
    trainer, rollout, valid = measurable(trainer_logp), measurable(rollout_logp), boolean(mask)
    valid = valid.to(trainer.device, non_blocking=True)
    rollout = rollout.to(trainer.device, non_blocking=True)
    tracker = chosen(tracker)
    with torch.no_grad(), tracker.disable_scope(), tracker.scope("ppo_actor"), tracker.scope("train_infer"):
        record_counts(tracker, n_valid_tokens=valid)
        totals = [_measured(*piece, extended=extended) for piece in _pieces(valid, trainer, rollout)]
        if not totals:
            return
        _record(tracker, totals, extended)
        if extended:
            log_sequence_stats(tracker, trainer, rollout, valid, THRESHOLDS)
            if versions is not None and current_version is not None:
                log_by_age(tracker, trainer, rollout, valid, measurable(versions), current_version)
            if advantages is not None:
                log_by_advantage(tracker, trainer, rollout, valid, measurable(advantages))


class _Totals(NamedTuple):
    """What one chunk adds: float64 vectors."""

    sums: Tensor
    """count, non-finite, overflows, d, |d|, d², log p trainer, log p rollout, k3, then tails and what is extended."""
    minima: Tensor
    maxima: Tensor
    bins: Tensor | None


def _pieces(valid: Tensor, trainer: Tensor, rollout: Tensor) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
    """Flat chunks with their masks; where looking at a mask costs nothing, valid tokens alone, without a mask."""
    for mask, ours, theirs in chunks(valid, trainer, rollout):
        if mask.device.type != "cpu":
            yield mask, ours, theirs
        elif mask.all():
            yield None, ours, theirs
        elif mask.any():
            places = mask.nonzero().squeeze(1)  # looked for once; twice as fast as indexing with the mask itself
            yield None, ours.index_select(0, places), theirs.index_select(0, places)


def _measured(mask: Tensor | None, trainer: Tensor, rollout: Tensor, *, extended: bool) -> _Totals:
    """Sums and extrema of a flat chunk; padding counts as d = 0, which adds nothing to a sum."""
    on_cpu = trainer.device.type == "cpu"  # where looking at a result costs nothing, there are short cuts
    trainer, rollout = selected(trainer, mask), selected(rollout, mask)
    difference = trainer - rollout
    size = difference.abs()
    excess = torch.expm1(difference)
    k3 = excess - difference
    largest = size.amax()
    tails = difference[size > _LOG_THRESHOLDS[0]] if on_cpu else difference
    tail_sizes = tails.abs()
    count = torch.full_like(largest, trainer.numel()) if mask is None else _count(mask)
    sums = [count, *_irregular(trainer, rollout, excess, largest)]
    sums += [difference.sum(), size.sum(), difference.dot(difference), trainer.sum(), rollout.sum(), k3.sum()]
    sums += [_count(tail_sizes > threshold) for threshold in _LOG_THRESHOLDS]
    bins = None
    if extended:
        sums += [_count(tails > threshold) for threshold in _LOG_THRESHOLDS]
        same = difference == 0
        sums += [_count(same if mask is None else same & mask), _count((trainer > 0) | (rollout > 0))]
        sums += [excess.sum(), excess.dot(excess)]
        bins = log_bins(size, mask)
    minima = [filled(difference, mask, torch.inf).amin(), filled(size, mask, torch.inf).amin()]
    maxima = [filled(difference, mask, -torch.inf).amax(), largest]
    return _Totals(torch.stack(sums), torch.stack(minima), torch.stack(maxima), bins)


def _irregular(trainer: Tensor, rollout: Tensor, excess: Tensor, largest: Tensor) -> list[Tensor]:
    """Number of tokens with a log-probability that is not finite, and of finite ones whose expm1 overflows."""
    if largest.device.type == "cpu" and largest < _NO_OVERFLOW:  # False for NaN
        return [torch.zeros_like(largest), torch.zeros_like(largest)]
    finite = torch.isfinite(trainer) & torch.isfinite(rollout)
    return [_count(~finite), _count(finite & (excess == torch.inf))]


def _count(flags: Tensor) -> Tensor:
    return torch.count_nonzero(flags).double()


def _record(tracker: StatsTracker, totals: list[_Totals], extended: bool) -> None:
    count, nonfinite, overflow, *sums = torch.stack([part.sums for part in totals]).sum(0).unbind()
    minima = torch.stack([part.minima for part in totals]).amin(0)
    maxima = torch.stack([part.maxima for part in totals]).amax(0)
    difference, size, squares, trainer, rollout, k3, *counts = sums
    spoiled = torch.where(nonfinite > 0, torch.nan, 0.0)
    means = {
        "logp_diff_squared": squares,
        "trainer_nll": -trainer,
        "rollout_nll": -rollout,
        "kl_k1": -difference,
        "kl_k2": squares / 2,
        "kl_k3": k3,
        "nonfinite_logp_fraction": nonfinite,
        "kl_k3_overflow_fraction": overflow,
    }
    outside, counts = counts[: len(THRESHOLDS)], counts[len(THRESHOLDS) :]
    means |= {f"ratio_outside_{threshold}": tail + spoiled for threshold, tail in zip(THRESHOLDS, outside)}
    if extended:
        above, (exact, positive, excess, excess_squares) = counts[: len(THRESHOLDS)], counts[len(THRESHOLDS) :]
        for threshold, tail, upper in zip(THRESHOLDS, outside, above):
            means[f"ratio_above_{threshold}"] = upper + spoiled
            means[f"ratio_below_{threshold}"] = tail - upper + spoiled
        means |= {"exact_match_fraction": exact, "positive_logp_fraction": positive}
        tracker.sums(token_ratios, torch.stack((count, excess, excess_squares)))
        bins = torch.stack([part.bins for part in totals if part.bins is not None]).sum(0)
        tracker.sums(quantiles, bins + spoiled, "logp_abs_diff")
    record(tracker, ReduceType.AVG, mean_rows(means, count))
    rows = {
        "logp_diff": torch.stack((difference, count, minima[0], maxima[0])),
        "logp_abs_diff": torch.stack((size, count, minima[1], maxima[1])),
    }
    record(tracker, ReduceType.AVG_MIN_MAX, rows)
