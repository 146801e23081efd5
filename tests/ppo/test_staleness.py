"""Staleness of the sampled tokens, against hand computation."""

from __future__ import annotations

import pytest
import torch
from support.ppo_reference import below

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.staleness import log_version_stats

VERSION_STATS = "ppo_actor/update/version_stats/"

HAND_COMPUTED = {
    **{f"sample_staleness_{kind}_avg": 1.5 for kind in ("theta", "proximal")},
    **{f"sample_staleness_{kind}_min": 1.0 for kind in ("theta", "proximal")},
    **{f"sample_staleness_{kind}_max": 2.0 for kind in ("theta", "proximal")},
    "stale_token_fraction": 1.0,
    "future_token_fraction": 0.0,
    "n_valid_generated_tokens": 2.0,
}


@pytest.mark.parametrize(
    ("mask", "shifted"),
    [
        ([0, 0, 1, 1], False),
        ([0, 1, 1, 0], True),
        ([0, 1, 1, 1], True),
        ([0, 0, 1, 1], None),
        ([0, 1, 1, 0], None),  # AReaL's: the mask is moved, the versions are not
    ],
)
def test_hand_computed_versions(mask, shifted):
    versions, mask = torch.tensor([[-1, -1, 3, 4]]), torch.tensor([mask])
    before = versions.clone(), mask.clone()
    tracker = StatsTracker()
    log_version_stats(versions, mask, 5, tracker, mask_at_predictions=shifted)
    assert below(VERSION_STATS, tracker.export()) == HAND_COMPUTED
    assert torch.equal(versions, before[0])
    assert torch.equal(mask, before[1])


def record_versions(group):
    import torch.distributed as dist

    tracker = StatsTracker()
    versions = torch.tensor([5, 5, 6]) if dist.get_rank() else torch.tensor([1])
    log_version_stats(versions, torch.ones_like(versions), 5, tracker)
    return tracker.export(reduce_group=group)


def test_versions_pool_over_ranks(two_ranks):
    for metrics in two_ranks.run(record_versions):
        found = below(VERSION_STATS, metrics)
        assert found["sample_staleness_theta_avg"] == 0.75  # ages 4, 0, 0, -1
        assert found["sample_staleness_theta_min"] == -1.0
        assert found["sample_staleness_proximal_max"] == 4.0
        assert found["stale_token_fraction"] == 0.25
        assert found["future_token_fraction"] == 0.25
        assert found["n_valid_generated_tokens"] == 4.0


def test_no_generated_token_gives_no_averages():
    tracker = StatsTracker()
    log_version_stats(torch.tensor([-1, 3]), torch.tensor([1, 0]), 5, tracker, mask_at_predictions=False)
    assert tracker.export() == {VERSION_STATS + "n_valid_generated_tokens": 0.0}
