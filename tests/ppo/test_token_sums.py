"""The sums of a chunk, with its padding (accelerators) and without (CPU)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.ppo_reference import specified

from areal_callbacks.ppo.logp import LogpChunk
from areal_callbacks.ppo.token_sums import add_sums, sum_tokens


def make_chunks():
    """The same tokens among padding that would make every sum NaN or infinite, and alone."""
    generator = torch.Generator().manual_seed(5)
    trainer = -3 * torch.rand(700, generator=generator).double()
    rollout = trainer + torch.randn(700, generator=generator).double()
    mask = torch.rand(700, generator=generator) < 0.6
    rollout[100:150] = trainer[100:150]
    alone = LogpChunk(None, trainer[mask], rollout[mask])
    trainer[~mask], rollout[~mask] = math.nan, math.inf
    return LogpChunk(mask, trainer, rollout), alone


def flatten(totals):
    named = {"sum": totals.sums, "minimum": totals.minima, "maximum": totals.maxima}
    return {f"{kind} {name}": float(value) for kind, part in named.items() for name, value in part.items()}


@pytest.mark.parametrize("extended", [True, False])
@pytest.mark.parametrize("valid", [None, (-math.inf, -1.0), (math.nan, -1.0), (-1.0, -720.0)])
def test_padding_in_place_gives_the_same_as_valid_tokens_alone(valid, extended):
    padded, alone = make_chunks()
    if valid is not None:
        place = int(padded.mask.nonzero()[0])
        for chunk, index in ((padded, place), (alone, 0)):
            chunk.trainer_logp[index], chunk.rollout_logp[index] = valid
    one, other = (sum_tokens(chunk, extended=extended) for chunk in (padded, alone))
    assert flatten(one) == pytest.approx(flatten(other), rel=1e-13, abs=1e-13, nan_ok=True)
    if extended:
        assert torch.equal(one.magnitudes, other.magnitudes)
    else:
        assert one.magnitudes is other.magnitudes is None


@pytest.mark.parametrize("which", [0, 1])
def test_sums_are_those_of_numpy(which):
    padded, alone = make_chunks()
    sums = sum_tokens((padded, alone)[which], extended=True).sums
    count = len(alone.trainer_logp)
    expected = specified(alone.trainer_logp.numpy(), alone.rollout_logp.numpy(), np.ones(count))
    assert sums["count"] == count
    for name in ("logp_diff_squared", "kl_k3", *(name for name in sums if name.startswith("ratio_outside"))):
        assert float(sums[name]) / count == pytest.approx(expected[name], rel=1e-12)
    ratio = np.exp(alone.trainer_logp.numpy() - alone.rollout_logp.numpy())
    assert float(sums["expm1_diff"]) == pytest.approx((ratio - 1).sum(), rel=1e-12)
    assert float(sums["expm1_diff_squared"]) == pytest.approx(((ratio - 1) ** 2).sum(), rel=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extrema_are_not_those_of_the_padding(sign):
    """All differences have one sign, so that a 0 in the place of padding would be the largest or the smallest."""
    trainer, rollout = sign * torch.tensor([2.0, 3.0, math.nan]), torch.tensor([0.0, 0.0, math.inf])
    totals = sum_tokens(LogpChunk(torch.tensor([True, True, False]), trainer, rollout), extended=False)
    assert [float(part["logp_diff"]) for part in (totals.minima, totals.maxima)] == sorted([2 * sign, 3 * sign])
    assert [float(part["logp_abs_diff"]) for part in (totals.minima, totals.maxima)] == [2.0, 3.0]


@pytest.mark.parametrize("extended", [True, False])
def test_chunks_add_up(extended):
    _, alone = make_chunks()
    parts = (slice(99), slice(99, None))
    halves = [LogpChunk(None, alone.trainer_logp[part], alone.rollout_logp[part]) for part in parts]
    added = add_sums([sum_tokens(half, extended=extended) for half in halves])
    whole = sum_tokens(alone, extended=extended)
    assert flatten(added) == pytest.approx(flatten(whole), rel=1e-12, abs=1e-12)
    assert not extended or torch.equal(added.magnitudes, whole.magnitudes)
