"""Sums and extrema over the compared tokens: all that the token metrics of the mismatch are computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from areal_callbacks.ppo.logp import LogpChunk
from areal_callbacks.ppo.quantiles import count_by_magnitude
from areal_callbacks.ppo.tails import SMALLEST, count_above, count_outside
from areal_callbacks.ppo.tensors import count_true, fill, select

_EXPM1_FINITE = 709.0
"""``expm1`` of a number up to this is finite in float64 (it overflows above 709.78)."""


class TokenSums(NamedTuple):
    """What some tokens add up to.

    Attributes:
        sums: name → float64 ``[]``: ``count``, ``nonfinite`` (a log-probability is NaN or infinite), ``overflow`` (both
            are finite, exp(d) is not), ``trainer_logp``, ``rollout_logp``, those named after metrics, and, if extended,
            ``expm1_diff`` and ``expm1_diff_squared``.
        minima, maxima: name → float64 ``[]``, of ``logp_diff`` and ``logp_abs_diff``.
        magnitudes: tokens per bin of |d|, float64 ``[BINS]`` (:mod:`~areal_callbacks.ppo.quantiles`); None unless
            extended.
    """

    sums: dict[str, Tensor]
    minima: dict[str, Tensor]
    maxima: dict[str, Tensor]
    magnitudes: Tensor | None


class _Tokens(NamedTuple):
    """A chunk of N positions with d = trainer_logp - rollout_logp; float64 ``[N]``, 0 where the mask is false."""

    mask: Tensor | None
    trainer_logp: Tensor
    rollout_logp: Tensor
    diff: Tensor
    abs_diff: Tensor
    expm1_diff: Tensor
    max_abs_diff: Tensor


def sum_tokens(chunk: LogpChunk, *, extended: bool) -> TokenSums:
    """Sum one chunk; masked positions count as d = 0, which adds nothing."""
    tokens = _compare(chunk)
    # Without a mask a result can be read without a wait: most tokens are then in no tail.
    tails = tokens.diff[tokens.abs_diff > SMALLEST] if tokens.mask is None else tokens.diff
    sums = {"count": _count(tokens), **_count_irregular(tokens), **_sum_moments(tokens), **count_outside(tails)}
    if not extended:
        return TokenSums(sums, *_find_extrema(tokens), None)
    sums |= {**count_above(tails), **_sum_extensions(tokens)}
    return TokenSums(sums, *_find_extrema(tokens), count_by_magnitude(tokens.abs_diff, tokens.mask))


def sum_finite(chunk: LogpChunk, sums: TokenSums) -> TokenSums:
    """Sum the tokens of a chunk whose two log-probabilities are finite; ``sums`` is what all its tokens add up to."""
    if chunk.mask is None and sums.sums["nonfinite"] == 0:
        return sums._replace(magnitudes=None)
    finite = torch.isfinite(chunk.trainer_logp) & torch.isfinite(chunk.rollout_logp)
    mask = finite if chunk.mask is None else finite & chunk.mask
    return sum_tokens(chunk._replace(mask=mask), extended=False)


def add_sums(parts: Sequence[TokenSums]) -> TokenSums:
    """Add the sums of one or more chunks, all of them extended or none."""
    sums, minima, maxima, magnitudes = zip(*parts)
    bins = None if magnitudes[0] is None else torch.stack(magnitudes).sum(0)
    return TokenSums(_reduce(sums, torch.sum), _reduce(minima, torch.amin), _reduce(maxima, torch.amax), bins)


def _reduce(parts: Sequence[dict[str, Tensor]], operation: Callable[..., Tensor]) -> dict[str, Tensor]:
    """Join the float64 ``[]`` of names that all have in as few operations as if there were one name."""
    names = min(parts, key=len).keys()
    values = torch.stack([torch.stack([part[name] for name in names]) for part in parts])
    return dict(zip(names, operation(values, 0).unbind()))


def _compare(chunk: LogpChunk) -> _Tokens:
    mask = chunk.mask
    trainer_logp, rollout_logp = select(chunk.trainer_logp, mask), select(chunk.rollout_logp, mask)
    diff = trainer_logp - rollout_logp
    abs_diff = diff.abs()
    return _Tokens(mask, trainer_logp, rollout_logp, diff, abs_diff, torch.expm1(diff), abs_diff.amax())


def _count(tokens: _Tokens) -> Tensor:
    return torch.full_like(tokens.max_abs_diff, tokens.diff.numel()) if tokens.mask is None else count_true(tokens.mask)


def _count_irregular(tokens: _Tokens) -> dict[str, Tensor]:
    if tokens.mask is None and tokens.max_abs_diff < _EXPM1_FINITE:  # False for NaN
        none = torch.zeros_like(tokens.max_abs_diff)
        return {"nonfinite": none, "overflow": none}
    finite = torch.isfinite(tokens.trainer_logp) & torch.isfinite(tokens.rollout_logp)
    return {"nonfinite": count_true(~finite), "overflow": count_true(finite & (tokens.expm1_diff == torch.inf))}


def _sum_moments(tokens: _Tokens) -> dict[str, Tensor]:
    return {
        "logp_diff": tokens.diff.sum(),
        "logp_abs_diff": tokens.abs_diff.sum(),
        "logp_diff_squared": tokens.diff.dot(tokens.diff),
        "trainer_logp": tokens.trainer_logp.sum(),
        "rollout_logp": tokens.rollout_logp.sum(),
        "kl_k3": (tokens.expm1_diff - tokens.diff).sum(),
    }


def _sum_extensions(tokens: _Tokens) -> dict[str, Tensor]:
    equal = tokens.diff == 0
    return {
        "exact_match_fraction": count_true(equal if tokens.mask is None else equal & tokens.mask),
        "positive_logp_fraction": count_true((tokens.trainer_logp > 0) | (tokens.rollout_logp > 0)),
        "expm1_diff": tokens.expm1_diff.sum(),
        "expm1_diff_squared": tokens.expm1_diff.dot(tokens.expm1_diff),
    }


def _find_extrema(tokens: _Tokens) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    values = {"logp_diff": tokens.diff, "logp_abs_diff": tokens.abs_diff}
    minima = {name: fill(tensor, tokens.mask, torch.inf).amin() for name, tensor in values.items()}
    maxima = {"logp_diff": fill(tokens.diff, tokens.mask, -torch.inf).amax(), "logp_abs_diff": tokens.max_abs_diff}
    return minima, maxima
