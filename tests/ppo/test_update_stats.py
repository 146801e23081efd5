"""The statistics of an update, against NumPy."""

from __future__ import annotations

import math

import pytest
import torch
from support.ppo_reference import below, update_statistics

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.clip import Clip
from areal_callbacks.ppo.update import PolicyUpdate
from areal_callbacks.ppo.update_stats import log_update_stats

SHAPE = (4, 25)


def make_tensors():
    generator = torch.Generator().manual_seed(3)
    new_logp, old_logp = (-2 * torch.rand(SHAPE, generator=generator) for _ in range(2))
    mask = torch.rand(SHAPE, generator=generator) < 0.6
    new_logp[~mask] = math.nan
    advantages, entropy = torch.randn(SHAPE, generator=generator), torch.rand(SHAPE, generator=generator)
    return mask, {"new_logp": new_logp, "old_logp": old_logp, "advantages": advantages, "entropy": entropy}


def record(*updates):
    tracker = StatsTracker()
    for update in updates:
        log_update_stats(update, tracker)
    return below("ppo_actor/update/", tracker.export())


@pytest.mark.parametrize("dual", [None, 2.0])
@pytest.mark.parametrize("sequence_level", [False, True])
def test_update_statistics(dual, sequence_level):
    mask, tensors = make_tensors()
    metrics = record(PolicyUpdate(mask, **tensors, clip=Clip(0.8, 1.3, dual), sequence_level=sequence_level))
    given = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    expected = update_statistics(mask, given, bounds=(0.8, 1.3), dual=dual, sequence_level=sequence_level)
    assert metrics == pytest.approx(expected, rel=1e-10)
    assert expected["clipped_tokens"] > 0


def test_minibatches_are_one_population():
    mask, tensors = make_tensors()
    parts = [{name: tensor[rows] for name, tensor in tensors.items()} for rows in (slice(0, 1), slice(1, 4))]
    options = {"clip": Clip(0.8, 1.3, 2.0)}
    pooled = record(*(PolicyUpdate(part, **p, **options) for part, p in zip((mask[:1], mask[1:]), parts)))
    given = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    expected = update_statistics(mask, given, bounds=(0.8, 1.3), dual=2.0, sequence_level=False)
    assert pooled == pytest.approx(expected, rel=1e-10)


def test_losses_without_clipping_record_no_clipping():
    logp, mask = torch.zeros(1, 2), torch.ones(1, 2)
    metrics = record(PolicyUpdate(mask, logp, logp, advantages=torch.ones(1), loss=torch.ones(1, 2)))
    names = {name.split("/")[0] for name in metrics}
    assert names == {"n_valid_tokens", "importance_weight", "approx_kl", "new_logp", "old_logp", "actor_loss"}


def test_a_given_loss_is_recorded_and_the_surrogate_only_if_the_loss_is_one():
    logp, mask, loss = torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([[5.0, 7.0]])
    given = record(PolicyUpdate(mask, logp, logp, advantages=torch.ones(1), clip=Clip(), loss=loss))
    assert given["actor_loss/avg"] == 6.0
    other = record(PolicyUpdate(mask, logp, logp, advantages=torch.ones(1), clip=Clip(surrogate=False)))
    assert not [name for name in other if name.startswith("actor_loss")]
    assert other["clipped_tokens"] == 0.0
