"""How far the trainer's log-probabilities are from those that the rollout engine sampled with."""

from __future__ import annotations

import torch
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.groups import log_by_advantage, log_by_age
from areal_callbacks.ppo.logp import align, split_valid
from areal_callbacks.ppo.positions import align_versions
from areal_callbacks.ppo.rows import enter_scope, record_counts
from areal_callbacks.ppo.sequences import log_sequence_stats
from areal_callbacks.ppo.tensors import check_per_token
from areal_callbacks.ppo.token_metrics import record_finite_metrics, record_token_metrics
from areal_callbacks.ppo.token_sums import add_sums, sum_finite, sum_tokens


def log_train_inference_stats(
    trainer_logp: Tensor,
    rollout_logp: Tensor,
    mask: Tensor,
    tracker: StatsTracker | None = None,
    *,
    extended: bool = True,
    versions: Tensor | None = None,
    current_version: int | None = None,
    mask_at_predictions: bool | None = None,
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
    positive_logp_fraction                       fraction with a log-probability above 0, an error          tokens
    logp_abs_diff/{p50,p90,p99,p99.9}            quantiles of |d|, off by at most 1/32                      derived
    ratio_mean, ratio_mean_standard_error        E[exp d] and its standard error                            derived
    chi2, ess_fraction                           E[exp 2d] - 1; (Σ exp d)² / (n Σ exp 2d)                   derived
    sequence_logp_diff_sum/{avg,min,max}         Σd of a sequence                                           sequences
    sequence_logp_diff_mean/{avg,min,max}        mean d of a sequence                                       sequences
    sequence_ratio_outside_{t}                   fraction with at least one token outside t                 sequences
    chi2_seq, log1p_chi2_seq                     E[exp 2Σd] - 1, and the logarithm of E[exp 2Σd]            derived
    by_age/{0,1,2,3_plus}/{logp_abs_diff,kl_k3}  means over tokens of that staleness                        tokens
    by_advantage/{positive,negative,zero}/{…}    the same means over tokens of that advantage               tokens
    finite/logp_diff/{avg,min,max}               the same of tokens with two finite log-probabilities       tokens
    finite/logp_abs_diff/{avg,min,max}           likewise, as all below                                     tokens
    finite/logp_diff_squared                     mean of d²                                                 tokens
    finite/{trainer,rollout}_nll                 mean of -log p                                             tokens
    finite/{kl_k1,kl_k2,kl_k3}                   means of -d, d²/2, exp(d) - 1 - d                          tokens
    finite/ratio_outside_{t}                     fraction with |d| > log t                                  tokens
    finite/n_valid_tokens                        number of such tokens                                      sum
    ===========================================  =========================================================  ==========

    From ``ratio_above`` on they are extensions. Everything is computed in float64 from the masked tokens, in constant
    memory, and pooled over batches and ranks. If a valid token has a log-probability that is not finite, tails and
    quantiles are NaN; those below ``finite/`` go on. Nothing waits for an accelerator. The sources of the formulas are
    in the modules :mod:`~areal_callbacks.ppo.token_metrics`, :mod:`~areal_callbacks.ppo.tails`,
    :mod:`~areal_callbacks.ppo.quantiles` and :mod:`~areal_callbacks.ppo.ratios`.

    Args:
        trainer_logp: the trainer's log-probabilities of the sampled tokens; any shape and float dtype.
        rollout_logp: those of the rollout, aligned, same shape.
        mask: valid generated tokens (boolean or 0/1), same shape. In two dimensions each row is a sequence; sequence
            metrics need two or more dimensions.
        tracker: None for the default tracker. Its current scope is ignored.
        extended: also the extensions.
        versions: policy version that sampled each token, negative for none; of the mask's shape.
        current_version: the version that the trainer now holds.
        mask_at_predictions: the versions stand at the tokens, all else at the positions that predict them, one to the
            left. None: as the versions tell, see :func:`~areal_callbacks.ppo.positions.is_at_predictions`.
        advantages: per token, aligned with the mask.

    Raises:
        ValueError: a tensor has not the mask's shape, also where it could be broadcast.
    """
    check_per_token(mask, trainer_logp=trainer_logp, rollout_logp=rollout_logp)
    check_per_token(mask, versions=versions, advantages=advantages)
    logp = align(trainer_logp, rollout_logp, mask)
    with torch.no_grad(), enter_scope(tracker, "train_infer") as tracker:
        record_counts(tracker, n_valid_tokens=logp.mask)
        chunks = list(split_valid(logp))
        sums = [sum_tokens(chunk, extended=extended) for chunk in chunks]
        if not sums:
            return
        record_token_metrics(tracker, add_sums(sums))
        if extended:
            record_finite_metrics(tracker, add_sums([sum_finite(*pair) for pair in zip(chunks, sums)]))
            versions = None if versions is None else align_versions(versions, mask, mask_at_predictions)
            log_sequence_stats(tracker, logp)
            log_by_age(tracker, logp, versions, current_version)
            log_by_advantage(tracker, logp, advantages)
